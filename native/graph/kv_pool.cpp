#include "kv_pool.h"

#include <cstring>

#include "treadle/errors.h"

namespace treadle {
namespace {

// Goes up when the bytes of a block change their meaning.
constexpr int kLayoutVersion = 1;

std::string layout_of(const ModelConfig& config) {
    return "f16 v" + std::to_string(kLayoutVersion) + " layers=" + std::to_string(config.num_layers) +
           " kv_heads=" + std::to_string(config.num_kv_heads) + " head_dim=" + std::to_string(config.head_dim) +
           " block_tokens=" + std::to_string(kKvBlockTokens);
}

}  // namespace

KvPool::KvPool(const ModelConfig& config, int64_t num_blocks)
    : num_blocks_(num_blocks),
      head_bytes_(static_cast<size_t>(config.head_dim) * kKvBlockTokens * 2 * sizeof(uint16_t)),
      layer_bytes_(static_cast<size_t>(config.num_kv_heads) * head_bytes_),
      block_bytes_(static_cast<size_t>(config.num_layers) * layer_bytes_),
      layout_(layout_of(config)),
      buffer_(static_cast<size_t>(num_blocks) * block_bytes_, "the KV blocks") {}

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
