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

std::string attention_layout(const ModelConfig& config, KvType type, const KvGroup& group) {
    return std::string(type == KvType::kF16 ? "f16" : "q8_0") + " v" + std::to_string(kLayoutVersion) +
           " layers=" + std::to_string(group.num_layers) + " kv_heads=" + std::to_string(config.num_kv_heads) +
           " head_dim=" + std::to_string(config.head_dim) + " block_tokens=" + std::to_string(kKvBlockTokens) +
           (group.window > 0 ? " window=" + std::to_string(group.window) : "") + (config.long_rope ? " rope=long" : "");
}

std::string convolution_layout(const ModelConfig& config, const KvGroup& group) {
    return "f32 v" + std::to_string(kLayoutVersion) + " layers=" + std::to_string(group.num_layers) +
           " convolution=" + std::to_string(group.window) + " columns=" + std::to_string(config.hidden_size) +
           " block_tokens=" + std::to_string(kKvBlockTokens);
}

}  // namespace

KvPool::KvPool(const ModelConfig& config, KvType type, const std::vector<int64_t>& num_blocks)
    : type_(type),
      head_dim_(config.head_dim),
      hidden_size_(config.hidden_size),
      head_bytes_(head_bytes_of(type, config.head_dim)) {
    for (const Sight sight : {Sight::kEverything, Sight::kWindow, Sight::kConvolution}) add_group(config, sight);
    allocate(config, num_blocks);
}

KvPool::Sight KvPool::sight_of(const ModelConfig& config, const LayerConfig& layer) {
    if (layer.convolution > 0) return Sight::kConvolution;
    return config.causal && layer.window > 0 ? Sight::kWindow : Sight::kEverything;
}

size_t KvPool::layer_bytes(const ModelConfig& config, const LayerConfig& layer) const {
    if (layer.convolution == 0) return static_cast<size_t>(config.num_kv_heads) * head_bytes_;
    return static_cast<size_t>(layer.convolution - 1) * static_cast<size_t>(config.hidden_size) * sizeof(float);
}

void KvPool::add_group(const ModelConfig& config, Sight sight) {
    KvGroup group;
    for (const LayerConfig& layer : config.layers) {
        if (sight_of(config, layer) != sight) continue;
        ++group.num_layers;
        if (sight != Sight::kEverything) group.window = std::max({group.window, layer.window, layer.convolution});
        group.block_bytes = (config.causal ? group.block_bytes : 0) + layer_bytes(config, layer);
    }
    if (group.num_layers == 0) return;
    const bool convolves = sight == Sight::kConvolution;
    group.layout = convolves ? convolution_layout(config, group) : attention_layout(config, type_, group);
    groups_.push_back(group);
    sights_.push_back(sight);
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
        const auto found = std::ranges::find(sights_, sight_of(config, layer));
        const auto group = static_cast<size_t>(found - sights_.begin());
        places_.push_back(
            {static_cast<int32_t>(group), buffers_[group].data() + used[group], groups_[group].block_bytes});
        if (config.causal) used[group] += layer_bytes(config, layer);
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
