// Activations into a tile: int8 with a scale per 32 columns and the sums the weight formats need (see ActTile).
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

struct Scale {
    float scale;    // of the tile
    float inverse;  // x * inverse rounds to q
};

// The largest |x| decides. Bit patterns of non-negative floats order as integers with infinity and NaN on top, so no
// NaN is lost on the way as it would be in a float maximum.
inline Scale block_scale(const float* x) {
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < 2; ++i) {
        const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x + 16 * i));
        top = _mm512_max_epu32(top, _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)));
    }
    const uint32_t amax_bits = _mm512_reduce_max_epu32(top);
    if (amax_bits >= 0x7F800000) return {__builtin_nanf(""), 0.0f};
    float amax;
    __builtin_memcpy(&amax, &amax_bits, sizeof amax);
    if (amax < kMinAmax) return {0.0f, 0.0f};
    return {amax / 127.0f, 127.0f / amax};
}

inline __m128i quantize_16(const float* x, __m512 inverse) {
    // An infinite or NaN x times the inverse 0 of such a block must become 0, not the NaN that it is.
    const __m512 product = _mm512_mul_ps(_mm512_loadu_ps(x), inverse);
    const __mmask16 number = _mm512_cmp_ps_mask(product, product, _CMP_ORD_Q);
    return _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(number, product));
}

struct HalfSums {
    int32_t low, high;  // of 16 columns each
};

// Quantises 32 columns, writes them as eight groups of four (num_tokens * 4 bytes apart) and returns their sums.
inline HalfSums quantize_32(const float* x, float inverse, int64_t num_tokens, int8_t* q) {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m256i bytes = _mm256_set_m128i(quantize_16(x + 16, factor), quantize_16(x, factor));
    int8_t groups[32];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(groups), bytes);
    TREADLE_UNROLL for (int g = 0; g < 8; ++g) __builtin_memcpy(q + 4 * num_tokens * g, groups + 4 * g, 4);
    __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1));
    return {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
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
        const HalfSums sums = quantize_32(x, scale.inverse, num_tokens, tile->q + (8 * b * num_tokens + token) * 4);
        const int64_t i = b * num_tokens + token;
        tile->scale[i] = scale.scale;
        tile->zero32[i] = -128 * (sums.low + sums.high);
        tile->scaled_sum[i] = scale.scale * static_cast<float>(sums.low + sums.high);
        int32_t* zero = tile->zero16 + 2 * b * num_tokens + token;
        zero[0] = -32 * sums.low;
        zero[num_tokens] = -32 * sums.high;
    }
}

}  // namespace treadle::avx512_vnni
