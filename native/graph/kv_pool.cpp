#include "kv_pool.h"

#include <algorithm>
#include <cstring>

#include "treadle/errors.h"

namespace treadle {
namespace {

// Goes up when the bytes of a block change their meaning.
constexpr int kLayoutVersion = 1;

size_t head_bytes_of(KvType type, int32_t head_dim) {
    if (type == KvType::kF16) return static_cast<size_t>(head_dim) * kKvBlockTokens * 2 * sizeof(uint16_t);
    if (head_dim % 32 != 0) {
        throw UsageError("KV type q8_0 rounds groups of 32 values, and this model's heads have " +
                         std::to_string(head_dim) + "; use f16");
    }
    return 2 * kv_q8_0_bytes(head_dim);
}

std::string layout_of(const ModelConfig& config, KvType type, const KvGroup& group) {
    return std::string(type == KvType::kF16 ? "f16" : "q8_0") + " v" + std::to_string(kLayoutVersion) +
           " layers=" + std::to_string(group.num_layers) + " kv_heads=" + std::to_string(config.num_kv_heads) +
           " head_dim=" + std::to_string(config.head_dim) + " block_tokens=" + std::to_string(kKvBlockTokens) +
           (group.window > 0 ? " window=" + std::to_string(group.window) : "") + (config.long_rope ? " rope=long" : "");
}

}  // namespace

KvPool::KvPool(const ModelConfig& config, KvType type, const std::vector<int64_t>& num_blocks)
    : type_(type), head_dim_(config.head_dim), head_bytes_(head_bytes_of(type, config.head_dim)) {
    add_group(config, false);
    add_group(config, true);
    allocate(config, num_blocks);
}

void KvPool::add_group(const ModelConfig& config, bool has_window) {
    KvGroup group;
    for (const LayerConfig& layer : config.layers) {
        if ((config.causal && layer.window > 0) != has_window) continue;
        ++group.num_layers;
        if (has_window) group.window = std::max(group.window, layer.window);
    }
    if (group.num_layers == 0) return;
    const int32_t num_places = config.causal ? group.num_layers : 1;
    group.block_bytes = static_cast<size_t>(num_places * config.num_kv_heads) * head_bytes_;
    group.layout = layout_of(config, type_, group);
    groups_.push_back(group);
}

void KvPool::allocate(const ModelConfig& config, const std::vector<int64_t>& num_blocks) {
    if (num_blocks.size() != 1 && num_blocks.size() != groups_.size()) {
        throw UsageError("num_blocks has " + std::to_string(num_blocks.size()) + " numbers, the layers are in " +
                         std::to_string(groups_.size()) + " groups");
    }
    for (size_t i = 0; i < groups_.size(); ++i) {
        KvGroup& group = groups_[i];
        group.num_blocks = num_blocks[num_blocks.size() == 1 ? 0 : i];
        buffers_.emplace_back(static_cast<size_t>(group.num_blocks) * group.block_bytes, "the KV blocks");
    }
    std::vector<size_t> used(groups_.size(), 0);
    for (const LayerConfig& layer : config.layers) {
        const size_t group = config.causal && layer.window > 0 ? groups_.size() - 1 : 0;
        places_.push_back(
            {static_cast<int32_t>(group), buffers_[group].data() + used[group], groups_[group].block_bytes});
        if (config.causal) used[group] += static_cast<size_t>(config.num_kv_heads) * head_bytes_;
    }
}

void KvPool::store(const KernelTable& kernels, int32_t block, int32_t layer, int32_t kv_head, int32_t position,
                   const float* key, const float* value) const {
    if (type_ == KvType::kF16) {
        kernels.store_k(key, head_dim_, position, keys<uint16_t>(block, layer, kv_head));
        kernels.store_v(value, head_dim_, position, values<uint16_t>(block, layer, kv_head));
    } else {
        store_k_q8_0(kernels, key, head_dim_, position, keys<uint8_t>(block, layer, kv_head));
        store_v_q8_0(kernels, value, head_dim_, position, values<uint8_t>(block, layer, kv_head));
    }
}

uint8_t* KvPool::checked_block(const char* caller, size_t group, int64_t block) const {
    if (group >= groups_.size()) {
        throw UsageError(std::string(caller) + ": group " + std::to_string(group) + ", expected less than " +
                         std::to_string(groups_.size()));
    }
    if (block < 0 || block >= groups_[group].num_blocks) {
        throw UsageError(std::string(caller) + ": block id " + std::to_string(block) + ", expected 0 to " +
                         std::to_string(groups_[group].num_blocks - 1));
    }
    return buffers_[group].data() + static_cast<size_t>(block) * groups_[group].block_bytes;
}

void KvPool::read(size_t group, int64_t block, uint8_t* out) const {
    std::memcpy(out, checked_block("read_kv_block", group, block), groups_[group].block_bytes);
}

void KvPool::write(size_t group, int64_t block, const uint8_t* data) const {
    std::memcpy(checked_block("write_kv_block", group, block), data, groups_[group].block_bytes);
}

void KvPool::copy(size_t group, int64_t from, int64_t to) const {
    const uint8_t* source = checked_block("copy_kv_block", group, from);
    std::memmove(checked_block("copy_kv_block", group, to), source, groups_[group].block_bytes);
}

int KvPool::lock() const {
    for (const PageBuffer& buffer : buffers_) {
        if (const int error = buffer.lock()) return error;
    }
    return 0;
}

}  // namespace treadle
