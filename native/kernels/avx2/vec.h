// Small vector pieces the kernels of this folder share. Internal linkage, so no other instruction set's object can pick
// up a copy compiled with these flags.
#pragma once

#include <immintrin.h>

#include "treadle/kernels.h"

// Arrays of vectors stay in registers only when the loops over them are unrolled.
#define TREADLE_UNROLL _Pragma("GCC unroll 8")
// The same goes for what is handed on by reference: it is only there when the callee is inlined, whatever its size.
#define TREADLE_INLINE inline __attribute__((always_inline))

namespace treadle::avx2 {
namespace {

constexpr int kLanes = 8;

inline __m256i load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Four bytes (four int8, an int16 pair or one int32) repeated over all lanes.
inline __m256i repeat32(const void* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

// Stops gcc from turning a chain of integer sums into a tree: that needs all products at once, so they spill to memory.
inline void keep_chain(__m256i& sum) {
#if defined(__GNUC__)
    __asm__("" : "+x"(sum));
#endif
}

inline __m256 load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Eight bytes, one per row, as 32-bit lanes.
inline __m256i widen_bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// 2^(e - 128) of eight bytes e; the two smallest powers are subnormal.
inline __m256 load_half_e8m0(const uint8_t* p) {
    const __m256i e = widen_bytes(p), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i subnormal = _mm256_slli_epi32(_mm256_min_epi32(_mm256_add_epi32(e, one), _mm256_set1_epi32(2)), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
}

// Of eight pairs of bytes, one per row, byte v as 32-bit lanes.
inline __m256 signed_half(const int8_t (*pairs)[2], int v) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs)));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(v == 0 ? _mm256_slli_epi32(wide, 16) : wide, 16));
}

// Adds halves, 8 -> 4 -> 2 -> 1 lanes.
inline float sum_lanes(__m256 v) {
    const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

// How far ahead of the dot products weights are requested. About two K-quant panel blocks: less leaves one token short
// of the memory's bandwidth (a quarter of it when it was 2.5 KiB: Zen 5 server, 2026-11).
constexpr int kPrefetchDistance = 7168;

// Requests kBytes, rounded up to whole lines. Addresses past the end of an allocation are fine: prefetches never fault.
// Always inline: gcc takes a function that does nothing but prefetch for one without effect and drops calls of it.
template <int kBytes>
TREADLE_INLINE void prefetch(const void* p) {
    const char* c = static_cast<const char*>(p);
    _Pragma("GCC unroll 16") for (int i = 0; i < kBytes; i += 64) _mm_prefetch(c + i, _MM_HINT_T0);
}

// Calls Kernel::run<T> for the tile's number of tokens, so that per-token accumulators are registers.
template <class Kernel, class Out>
inline void run_tile(const void* panel, int64_t num_columns, const ActTile* tile, Out out) {
    switch (tile->num_tokens) {
        case 1:
            return Kernel::template run<1>(panel, num_columns, tile, out);
        case 2:
            return Kernel::template run<2>(panel, num_columns, tile, out);
        case 3:
            return Kernel::template run<3>(panel, num_columns, tile, out);
        case 4:
            return Kernel::template run<4>(panel, num_columns, tile, out);
        case 5:
            return Kernel::template run<5>(panel, num_columns, tile, out);
        case 6:
            return Kernel::template run<6>(panel, num_columns, tile, out);
        case 7:
            return Kernel::template run<7>(panel, num_columns, tile, out);
        default:
            return Kernel::template run<8>(panel, num_columns, tile, out);
    }
}

// exp(x) as treadle/kernels.h writes it down.
inline __m256 exp_ps(__m256 x) {
    // The operand that may be NaN comes second: max and min return it.
    x = _mm256_max_ps(_mm256_set1_ps(kExpLowest), _mm256_min_ps(_mm256_set1_ps(kExpHighest), x));
    const __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), r);
    __m256 p = _mm256_set1_ps(kExpPoly[0]);
    TREADLE_UNROLL for (int i = 1; i < 5; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpPoly[i]));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    // 2^n in two factors: n reaches from -159 to 130, a float's exponent from -126 to 127. The first product is exact.
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i first = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i power1 = _mm256_slli_epi32(_mm256_add_epi32(first, bias), 23);
    const __m256i power2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, first), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power1)), _mm256_castsi256_ps(power2));
}

inline __m256 soft_capped(__m256 x, SoftCap cap) {
    const __m256 y = _mm256_mul_ps(x, _mm256_set1_ps(cap.inverse)), one = _mm256_set1_ps(1.0f);
    const __m256 share = _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(exp_ps(_mm256_add_ps(y, y)), one));
    return _mm256_mul_ps(_mm256_set1_ps(cap.cap), _mm256_sub_ps(one, share));
}

// All bits set where a row that sees first .. limit - 1 sees position 8 * n + lane of a block.
inline __m256 seen_of(int32_t first, int32_t limit, int n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(limit - kLanes * n), lane);
    const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first - kLanes * n), lane);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before, below));
}

}  // namespace
}  // namespace treadle::avx2
