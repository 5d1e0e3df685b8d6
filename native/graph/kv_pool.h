// The memory of all KV blocks: where a head's keys and values lie, and blocks as plain bytes for tiers beside it.
//
// Layers that see everything before a token and layers that look back no further than a window, or a convolution, have
// blocks of their own, because those of the latter are of use for a while only. A model with both has two groups of
// blocks, numbered separately.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/memory.h"
#include "treadle/model.h"
#include "treadle/runtime.h"

namespace treadle {

// Block after block, inside a block layer after layer of the group, inside a layer head after head, keys then values.
// Of a convolution a block holds the gated values that the next tokens read, float32 whatever the type. An encoder
// needs them no longer than a layer takes, so all its layers are one group and write to the same place.
class KvPool {
 public:
    // num_blocks: of each group, or one number for all. Throws UsageError if the type does not suit the model's heads,
    // or the model has another number of groups.
    KvPool(const ModelConfig& config, KvType type, const std::vector<int64_t>& num_blocks);

    // Of the type the pool has: f16 is uint16_t, q8_0 bytes.
    template <typename T>
    T* keys(int32_t block, int32_t layer, int32_t kv_head) const {
        const LayerPlace& place = places_[static_cast<size_t>(layer)];
        return reinterpret_cast<T*>(place.first_block + static_cast<size_t>(block) * place.block_bytes +
                                    static_cast<size_t>(kv_head) * head_bytes_);
    }
    template <typename T>
    T* values(int32_t block, int32_t layer, int32_t kv_head) const {
        return keys<T>(block, layer, kv_head) + head_bytes_ / 2 / sizeof(T);
    }

    // A row [hidden_size] of the ring of a convolution, 0 .. positions - 2.
    float* gated_values(int32_t block, int32_t layer, int32_t row) const {
        const LayerPlace& place = places_[static_cast<size_t>(layer)];
        return reinterpret_cast<float*>(place.first_block + static_cast<size_t>(block) * place.block_bytes) +
               static_cast<ptrdiff_t>(row) * hidden_size_;
    }

    // Keys and values [head_dim] of one position (0..31) of a block.
    void store(const KernelTable& kernels, int32_t block, int32_t layer, int32_t kv_head, int32_t position,
               const float* key, const float* value) const;

    // Blocks as bytes; see Runtime.
    void read(size_t group, int64_t block, uint8_t* out) const;
    void write(size_t group, int64_t block, const uint8_t* data) const;
    void copy(size_t group, int64_t from, int64_t to) const;

    KvType type() const { return type_; }
    // Those of whole contexts first.
    const std::vector<KvGroup>& groups() const { return groups_; }
    int32_t group_of(int32_t layer) const { return places_[static_cast<size_t>(layer)].group; }
    // Keys and values of one KV head in a block.
    size_t head_bytes() const { return head_bytes_; }
    int lock() const;

 private:
    enum class Sight { kEverything, kWindow, kConvolution };
    struct LayerPlace {
        int32_t group;
        uint8_t* first_block;  // the layer's part of it
        size_t block_bytes;
    };

    static Sight sight_of(const ModelConfig& config, const LayerConfig& layer);
    void add_group(const ModelConfig& config, Sight sight);
    size_t layer_bytes(const ModelConfig& config, const LayerConfig& layer) const;
    void allocate(const ModelConfig& config, const std::vector<int64_t>& num_blocks);
    uint8_t* checked_block(const char* caller, size_t group, int64_t block) const;

    KvType type_;
    int32_t head_dim_, hidden_size_;
    size_t head_bytes_;
    std::vector<KvGroup> groups_;
    std::vector<Sight> sights_;        // of each group
    std::vector<PageBuffer> buffers_;  // of each group
    std::vector<LayerPlace> places_;   // of each layer
};

}  // namespace treadle
