// Inputs of products, quantised and as floats, cut into token tiles (see ActTile in formats.h).
#pragma once

#include <cstdint>

#include "treadle/kernels.h"
#include "treadle/memory.h"

namespace treadle {

// Up to this many tokens, every worker quantises all inputs into a buffer of its own instead of sharing the work.
constexpr int64_t kRepeatedTokens = kMaxTile;

// Cuts the tokens of a step into tiles of nearly equal width, at most kMaxTile.
struct TilePlan {
    explicit TilePlan(int64_t num_tokens)
        : num_tiles((num_tokens + kMaxTile - 1) / kMaxTile),
          base_width(num_tiles == 0 ? 0 : num_tokens / num_tiles),
          num_wider(num_tiles == 0 ? 0 : num_tokens % num_tiles) {}

    int64_t start(int64_t tile) const { return tile * base_width + (tile < num_wider ? tile : num_wider); }
    int32_t width(int64_t tile) const { return static_cast<int32_t>(base_width + (tile < num_wider ? 1 : 0)); }
    int64_t tile_of(int64_t token) const {
        const int64_t wide_tokens = num_wider * (base_width + 1);
        return token < wide_tokens ? token / (base_width + 1) : num_wider + (token - wide_tokens) / base_width;
    }

    int64_t num_tiles, base_width, num_wider;
};

// The tile without its first columns (a multiple of 32, but any for kActF32).
inline ActTile skip_columns(const ActTile& tile, int64_t columns) {
    const int64_t skipped = columns * tile.num_tokens, blocks = columns / 32 * tile.num_tokens;
    return {tile.num_tokens,          tile.q + skipped,         tile.scale + blocks, tile.zero32 + blocks,
            tile.scaled_sum + blocks, tile.zero16 + 2 * blocks, tile.x + skipped};
}

class Activations {
 public:
    // Room for so many values, columns of all tokens, in every format; pages are only taken for formats that are used.
    void carve(Carver& carver, int64_t max_values) {
        const auto values = static_cast<size_t>(max_values);
        x_ = carver.take<float>(values);
        q_ = carver.take<int8_t>(values);
        scale_ = carver.take<float>(values / 32 + 1);
        zero32_ = carver.take<int32_t>(values / 32 + 1);
        scaled_sum_ = carver.take<float>(values / 32 + 1);
        zero16_ = carver.take<int32_t>(values / 16 + 1);
    }

    // What follows the first so many values (a multiple of 32, but any for kActF32).
    Activations after(int64_t values) const {
        Activations rest = *this;
        rest.x_ += values;
        rest.q_ += values;
        rest.scale_ += values / 32;
        rest.zero32_ += values / 32;
        rest.scaled_sum_ += values / 32;
        rest.zero16_ += values / 16;
        return rest;
    }

    ActTile tile(const TilePlan& plan, int64_t index, int64_t columns) const {
        const int64_t start = plan.start(index);
        const int64_t blocks = start * (columns / 32);
        return {plan.width(index),    q_ + start * columns, scale_ + blocks,     zero32_ + blocks,
                scaled_sum_ + blocks, zero16_ + 2 * blocks, x_ + start * columns};
    }

 private:
    float* x_ = nullptr;
    int8_t* q_ = nullptr;
    float* scale_ = nullptr;
    int32_t* zero32_ = nullptr;
    float* scaled_sum_ = nullptr;
    int32_t* zero16_ = nullptr;
};

}  // namespace treadle
