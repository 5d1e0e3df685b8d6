// Activations into a tile: int8 with a scale per 32 columns and the sums the weight formats need (see ActTile).
#include "entries.h"
#include "vec.h"

namespace treadle::avx2 {
namespace {

struct Scale {
    float scale;    // of the tile
    float inverse;  // x * inverse rounds to q
    bool finite;
};

inline uint32_t largest_lane(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

inline int32_t sum_lanes(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

// The largest |x| decides. Bit patterns of non-negative floats order as integers with infinity and NaN on top, so no
// NaN is lost on the way as it would be in a float maximum.
inline Scale block_scale(const float* x) {
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
        const __m256i magnitude = _mm256_and_si256(load_bytes(x + kLanes * i), _mm256_set1_epi32(0x7FFFFFFF));
        top = _mm256_max_epu32(top, magnitude);
    }
    const uint32_t amax_bits = largest_lane(top);
    if (amax_bits >= 0x7F800000) return {__builtin_nanf(""), 0.0f, false};
    float amax;
    __builtin_memcpy(&amax, &amax_bits, sizeof amax);
    if (amax < kMinAmax) return {0.0f, 0.0f, true};
    return {amax / 127.0f, 127.0f / amax, true};
}

inline __m256i round_scaled(const float* x, const Scale& scale) {
    if (!scale.finite) return _mm256_setzero_si256();
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(scale.inverse)));
}

// Quantises 16 columns, writes them as four groups of four (num_tokens * 4 bytes apart) and returns their sum.
inline int32_t quantize_16(const float* x, const Scale& scale, int32_t num_tokens, int8_t* q) {
    const __m256i first = round_scaled(x, scale);
    const __m256i second = round_scaled(x + kLanes, scale);
    // Packing works within 128-bit lanes: groups 0 and 2 end up in the lower one, 1 and 3 in the upper one.
    const __m256i words = _mm256_packs_epi32(first, second);
    int8_t bytes[32];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), _mm256_packs_epi16(words, words));
    const int64_t stride = 4 * int64_t{num_tokens};
    __builtin_memcpy(q, bytes, 4);
    __builtin_memcpy(q + stride, bytes + 16, 4);
    __builtin_memcpy(q + 2 * stride, bytes + 4, 4);
    __builtin_memcpy(q + 3 * stride, bytes + 20, 4);
    return sum_lanes(_mm256_add_epi32(first, second));
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

}  // namespace treadle::avx2
