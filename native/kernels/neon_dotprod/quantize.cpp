// Activations into a tile: int8 with a scale per 32 columns and the sums the weight formats need (see ActTile).
#include "entries.h"
#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

struct Scale {
    float scale;    // of the tile
    float inverse;  // x * inverse rounds to q
    bool finite;
};

// The largest |x| decides. Bit patterns of non-negative floats order as integers with infinity and NaN on top, so no
// NaN is lost on the way as it would be in a float maximum.
inline Scale block_scale(const float* x) {
    uint32x4_t top = vdupq_n_u32(0);
    TREADLE_UNROLL for (int i = 0; i < 8; ++i) {
        top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + kLanes * i))));
    }
    const uint32_t amax_bits = vmaxvq_u32(top);
    if (amax_bits >= 0x7F800000) return {__builtin_nanf(""), 0.0f, false};
    float amax;
    __builtin_memcpy(&amax, &amax_bits, sizeof amax);
    if (amax < kMinAmax) return {0.0f, 0.0f, true};
    return {amax / 127.0f, 127.0f / amax, true};
}

inline int32x4_t round_scaled(const float* x, const Scale& scale) {
    if (!scale.finite) return vdupq_n_s32(0);
    return vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), scale.inverse));
}

// Quantises 16 columns, writes them as four groups of four (num_tokens * 4 bytes apart) and returns their sum.
inline int32_t quantize_16(const float* x, const Scale& scale, int32_t num_tokens, int8_t* q) {
    int32x4_t group[4];
    TREADLE_UNROLL for (int g = 0; g < 4; ++g) group[g] = round_scaled(x + kLanes * g, scale);
    const int16x8_t low = vmovn_high_s32(vmovn_s32(group[0]), group[1]);
    const int16x8_t high = vmovn_high_s32(vmovn_s32(group[2]), group[3]);
    int8_t bytes[16];
    vst1q_s8(bytes, vmovn_high_s16(vmovn_s16(low), high));
    TREADLE_UNROLL for (int g = 0; g < 4; ++g) __builtin_memcpy(q + 4 * int64_t{num_tokens} * g, bytes + 4 * g, 4);
    return vaddvq_s32(vaddq_s32(vaddq_s32(group[0], group[1]), vaddq_s32(group[2], group[3])));
}

}  // namespace

void quantize_f32(const float* x, int64_t num_columns, int32_t token, const ActTile* tile) {
    float* out = tile->x + token;
    for (int64_t k = 0; k < num_columns; ++k) out[k * tile->num_tokens] = x[k];
}

void quantize_q8(const float* x, int64_t num_columns, int32_t token, const ActTile* tile) {
    const int32_t num_tokens = tile->num_tokens;
    for (int64_t b = 0; b < num_columns / 32; ++b, x += 32) {
        const Scale scale = block_scale(x);
        int8_t* q = tile->q + (8 * b * num_tokens + token) * 4;
        const int32_t low = quantize_16(x, scale, num_tokens, q);
        const int32_t high = quantize_16(x + 16, scale, num_tokens, q + 16 * num_tokens);
        const int64_t i = b * num_tokens + token;
        tile->scale[i] = scale.scale;
        tile->zero32[i] = -128 * (low + high);
        tile->scaled_sum[i] = scale.scale * static_cast<float>(low + high);
        int32_t* zero = tile->zero16 + 2 * b * num_tokens + token;
        zero[0] = -32 * low;
        zero[num_tokens] = -32 * high;
    }
}

}  // namespace treadle::neon_dotprod
