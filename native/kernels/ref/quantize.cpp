// Activations into tiles.
#include <cmath>

#include "half.h"
#include "ref.h"

namespace treadle::ref {

namespace {

// How a block is quantised: q = round(x * inverse) and x ~ q * scale.
struct Scales {
    float scale;
    float inverse;
};

// Magnitudes compare as integers, which orders finite < infinite < NaN.
Scales scales_of(const float* x, int64_t count) {
    uint32_t amax_bits = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = bits_of_float(x[i]) & 0x7fffffff;
        if (bits > amax_bits) amax_bits = bits;
    }
    const float amax = float_of_bits(amax_bits);
    if (amax_bits >= 0x7f800000) return {NAN, 0.0f};
    if (amax < kMinAmax) return {0.0f, 0.0f};
    return {amax / 127.0f, 127.0f / amax};
}

// Quantises `count` columns into the tile's q; returns their sum.
int32_t quantize_columns(const float* x, int64_t count, float inverse, int32_t num_tokens, int8_t* q) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int8_t value = inverse == 0.0f ? 0 : static_cast<int8_t>(std::nearbyint(x[i] * inverse));
        q[i / 4 * num_tokens * 4 + i % 4] = value;
        sum += value;
    }
    return sum;
}

}  // namespace

void quantize_f32(const float* x, int64_t num_columns, int32_t token, const ActTile* tile) {
    for (int64_t k = 0; k < num_columns; ++k) tile->x[k * tile->num_tokens + token] = x[k];
}

void quantize_q8(const float* x, int64_t num_columns, int32_t token, const ActTile* tile) {
    const int32_t num_tokens = tile->num_tokens;
    for (int64_t b = 0; b < num_columns / 32; ++b) {
        const Scales scales = scales_of(x + 32 * b, 32);
        int32_t sum = 0;
        for (int64_t v = 0; v < 2; ++v) {
            const int64_t first = 32 * b + 16 * v;
            int8_t* q = tile->q + first * num_tokens + 4 * token;
            const int32_t sum16 = quantize_columns(x + first, 16, scales.inverse, num_tokens, q);
            tile->zero16[(2 * b + v) * num_tokens + token] = -32 * sum16;
            sum += sum16;
        }
        const int64_t at = b * num_tokens + token;
        tile->scale[at] = scales.scale;
        tile->zero32[at] = -128 * sum;
        tile->scaled_sum[at] = scales.scale * static_cast<float>(sum);
    }
}

}  // namespace treadle::ref
