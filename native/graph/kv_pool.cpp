#include "kv_pool.h"

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

std::string layout_of(const ModelConfig& config, KvType type) {
    return std::string(type == KvType::kF16 ? "f16" : "q8_0") + " v" + std::to_string(kLayoutVersion) +
           " layers=" + std::to_string(config.num_layers) + " kv_heads=" + std::to_string(config.num_kv_heads) +
           " head_dim=" + std::to_string(config.head_dim) + " block_tokens=" + std::to_string(kKvBlockTokens) +
           (config.long_rope ? " rope=long" : "");
}

}  // namespace

KvPool::KvPool(const ModelConfig& config, KvType type, int64_t num_blocks)
    : type_(type),
      head_dim_(config.head_dim),
      num_blocks_(num_blocks),
      head_bytes_(head_bytes_of(type, config.head_dim)),
      layer_bytes_(config.causal ? static_cast<size_t>(config.num_kv_heads) * head_bytes_ : 0),
      block_bytes_(static_cast<size_t>(config.num_kv_heads) * head_bytes_ +
                   static_cast<size_t>(config.num_layers - 1) * layer_bytes_),
      layout_(layout_of(config, type)),
      buffer_(static_cast<size_t>(num_blocks) * block_bytes_, "the KV blocks") {}

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

uint8_t* KvPool::checked_block(const char* caller, int64_t block) const {
    if (block < 0 || block >= num_blocks_) {
        throw UsageError(std::string(caller) + ": block id " + std::to_string(block) + ", expected 0 to " +
                         std::to_string(num_blocks_ - 1));
    }
    return block_data(block);
}

void KvPool::read(int64_t block, uint8_t* out) const {
    std::memcpy(out, checked_block("read_kv_block", block), block_bytes_);
}

void KvPool::write(int64_t block, const uint8_t* data) const {
    std::memcpy(checked_block("write_kv_block", block), data, block_bytes_);
}

void KvPool::copy(int64_t from, int64_t to) const {
    const uint8_t* source = checked_block("copy_kv_block", from);
    std::memmove(checked_block("copy_kv_block", to), source, block_bytes_);
}

}  // namespace treadle
