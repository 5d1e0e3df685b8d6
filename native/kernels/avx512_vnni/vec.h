// Small vector pieces the kernels of this folder share. Internal linkage, so no other instruction set's object can pick
// up a copy compiled with these flags.
#pragma once

#include <immintrin.h>

#include "treadle/kernels.h"

// Arrays of vectors stay in registers only when the loops over them are unrolled.
#define TREADLE_UNROLL _Pragma("GCC unroll 8")

namespace treadle::avx512_vnni {
namespace {

// Four bytes (four int8, an int16 pair or one int32) repeated over all lanes; folds into an embedded broadcast.
inline __m512i repeat32(const void* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

inline __m512 load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// 2^(e - 128) of 16 bytes e; the two smallest powers are subnormal.
inline __m512 load_half_e8m0(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __m512i subnormal = _mm512_slli_epi32(_mm512_min_epi32(_mm512_add_epi32(e, one), _mm512_set1_epi32(2)), 21);
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal));
}

// How far ahead of their use weights are requested. On a Zen 5 (November 2026) 7 KiB gave a quarter more than 2 KiB at
// eight tokens and a tenth at one; 14 KiB gave nothing more.
constexpr int kPrefetchDistance = 7168;

// Requests kBytes, rounded up to whole lines. Addresses past the end of an allocation are fine: prefetches never fault.
template <int kBytes>
inline void prefetch(const void* p) {
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

struct FourBytes {
    int8_t bytes[4];
};

// 32-bit lane i of each 128 bits in all four lanes of them.
template <int i>
inline __m512i repeat_lane(__m512i v) {
    return _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0x55 * i));
}

// s[t] += 4-column dot products of the 16 rows with each token; x = the tile's q at these four columns, [T][4].
// Assembly, because gcc 12 does not know that vpdpbusd broadcasts from memory: its separate broadcasts take registers
// and front-end slots that these loops do not have to spare. Eight broadcasts for eight products would keep both load
// ports busy all the time, so the last three come out of one load: on a Zen 5 (November 2026) up to a sixth faster.
template <int T>
inline void dot4(__m512i weights, const int8_t* x, __m512i* s) {
    constexpr int kBroadcast = T == 8 ? 5 : T;
    TREADLE_UNROLL for (int t = 0; t < kBroadcast; ++t) {
        asm("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(s[t])
            : "v"(weights), "m"(*reinterpret_cast<const FourBytes*>(x + 4 * t)));
    }
    if constexpr (T == 8) {
        const __m512i last = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 16)));
        s[5] = _mm512_dpbusd_epi32(s[5], weights, repeat_lane<1>(last));
        s[6] = _mm512_dpbusd_epi32(s[6], weights, repeat_lane<2>(last));
        s[7] = _mm512_dpbusd_epi32(s[7], weights, repeat_lane<3>(last));
    }
}

// Adds halves, 16 -> 8 -> 4 -> 2 -> 1 lanes.
inline float sum_lanes(__m512 v) {
    const __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

// exp(x) as treadle/kernels.h writes it down.
inline __m512 exp_ps(__m512 x) {
    // The operand that may be NaN comes second: max and min return it.
    x = _mm512_max_ps(_mm512_set1_ps(kExpLowest), _mm512_min_ps(_mm512_set1_ps(kExpHighest), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2High), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Low), r);
    __m512 p = _mm512_set1_ps(kExpPoly[0]);
    TREADLE_UNROLL for (int i = 1; i < 5; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpPoly[i]));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}

inline __m512 soft_capped(__m512 x, SoftCap cap) {
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(cap.inverse)), one = _mm512_set1_ps(1.0f);
    const __m512 share = _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(exp_ps(_mm512_add_ps(y, y)), one));
    return _mm512_mul_ps(_mm512_set1_ps(cap.cap), _mm512_sub_ps(one, share));
}

// Bit p is set where a row that sees first .. limit - 1 sees position p of a block; `first` may be null for 0.
inline uint32_t seen_by(const int32_t* first, const int32_t* limit, int32_t row) {
    const uint64_t below = (uint64_t{1} << limit[row]) - 1;
    return static_cast<uint32_t>(first ? below >> first[row] << first[row] : below);
}

}  // namespace
}  // namespace treadle::avx512_vnni
