// The memory of all KV blocks: where a head's keys and values lie, and blocks as plain bytes for tiers beside it.
#pragma once

#include <cstdint>
#include <string>

#include "treadle/memory.h"
#include "treadle/model.h"

namespace treadle {

// Block after block, inside a block layer after layer, inside a layer head after head, keys then values. An encoder
// needs them no longer than a layer takes, so all its layers write to the same place.
class KvPool {
 public:
    // Throws UsageError if the type does not suit the model's heads.
    KvPool(const ModelConfig& config, KvType type, int64_t num_blocks);

    // Of the type the pool has: f16 is uint16_t, q8_0 bytes.
    template <typename T>
    T* keys(int32_t block, int32_t layer, int32_t kv_head) const {
        return reinterpret_cast<T*>(block_data(block) + static_cast<size_t>(layer) * layer_bytes_ +
                                    static_cast<size_t>(kv_head) * head_bytes_);
    }
    template <typename T>
    T* values(int32_t block, int32_t layer, int32_t kv_head) const {
        return keys<T>(block, layer, kv_head) + head_bytes_ / 2 / sizeof(T);
    }

    // Keys and values [head_dim] of one position (0..31) of a block.
    void store(const KernelTable& kernels, int32_t block, int32_t layer, int32_t kv_head, int32_t position,
               const float* key, const float* value) const;

    // Blocks as bytes; see Runtime.
    void read(int64_t block, uint8_t* out) const;
    void write(int64_t block, const uint8_t* data) const;
    void copy(int64_t from, int64_t to) const;

    KvType type() const { return type_; }
    int64_t num_blocks() const { return num_blocks_; }
    // Keys and values of one KV head in a block.
    size_t head_bytes() const { return head_bytes_; }
    size_t block_bytes() const { return block_bytes_; }
    const std::string& layout() const { return layout_; }
    int lock() const { return buffer_.lock(); }

 private:
    uint8_t* block_data(int64_t block) const { return buffer_.data() + static_cast<size_t>(block) * block_bytes_; }
    uint8_t* checked_block(const char* caller, int64_t block) const;

    KvType type_;
    int32_t head_dim_;
    int64_t num_blocks_;
    size_t head_bytes_;
    size_t layer_bytes_;  // from one layer to the next
    size_t block_bytes_;
    std::string layout_;
    PageBuffer buffer_;
};

}  // namespace treadle
