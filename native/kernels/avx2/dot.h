// Dot products of one half of a panel's sub-block (8 rows of 32 columns) with a tile. A half is 32 bytes of each
// 64-byte vector of the panel (see formats.h): pointers to quants point at the half's first byte, and groups are 64
// bytes apart.
//
// Without VNNI an unsigned-by-signed product is vpmaddubsw: two products added in a saturating int16. Activations are
// -127..127, so an int16 sum of 2 * n products cannot saturate while n * 2 * max(q) * 127 <= 32767:
//   four bits  8 groups  8 * 2 * 15 * 127 = 30480
//   five bits  4 groups  4 * 2 * 31 * 127 = 31496
//   six bits   2 groups  2 * 2 * 63 * 127 = 32004
//   int8       1 group       2 * 128 * 127 = 32512, |w| <= 128
// After so many groups, vpmaddwd by ones widens to the int32 lane of each row.
#pragma once

#include "vec.h"

namespace treadle::avx2 {
namespace {

template <int T>
inline void clear(__m256i* s) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm256_setzero_si256();
}

// Stops gcc from turning a chain of integer sums into a tree: that needs all products at once, so they spill to memory.
inline void keep_chain(__m256i& sum) {
#if defined(__GNUC__)
    __asm__("" : "+x"(sum));
#endif
}

// s16[t] += products of four columns of 8 rows, as two int16 a row; x = the tile's q at these four columns, [T][4].
template <int T>
inline void dot4(__m256i weights, const int8_t* x, __m256i* s16) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) {
        s16[t] = _mm256_add_epi16(s16[t], _mm256_maddubs_epi16(weights, repeat32(x + 4 * t)));
        keep_chain(s16[t]);
    }
}

// s[t] += the int16 pairs of s16[t].
template <int T>
inline void widen(const __m256i* s16, __m256i* s) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) {
        s[t] = _mm256_add_epi32(s[t], _mm256_madd_epi16(s16[t], _mm256_set1_epi16(1)));
        keep_chain(s[t]);
    }
}

inline __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

// Moves bit `kFrom` of every byte to bit `kTo`; the neighbours' bits that come along are masked by the caller.
template <int kFrom, int kTo>
inline __m256i move_bit(__m256i v) {
    if constexpr (kFrom < kTo) return _mm256_slli_epi16(v, kTo - kFrom);
    if constexpr (kFrom > kTo) return _mm256_srli_epi16(v, kFrom - kTo);
    return v;
}

// s[t] += nibbles of 32 columns times x [8][T][4].
template <int T>
inline void dot_four_bit(const uint8_t* q, const int8_t* x, __m256i* s) {
    __m256i s16[T];
    clear<T>(s16);
    TREADLE_UNROLL for (int g = 0; g < 4; ++g) {
        const __m256i v = load_bytes(q + 64 * g);
        dot4<T>(low_nibbles(v), x + 4 * T * g, s16);
        dot4<T>(high_nibbles(v), x + 4 * T * (g + 4), s16);
    }
    widen<T>(s16, s);
}

template <int T, int kGroup>
inline void dot_five_bit_group(const uint8_t* q, __m256i h, const int8_t* x, __m256i* s16) {
    const __m256i v = load_bytes(q + 64 * (kGroup % 4));
    const __m256i low = kGroup < 4 ? low_nibbles(v) : high_nibbles(v);
    const __m256i fifth = _mm256_and_si256(move_bit<kGroup, 4>(h), _mm256_set1_epi8(16));
    dot4<T>(_mm256_or_si256(low, fifth), x + 4 * T * kGroup, s16);
}

template <int T, int kFirstGroup>
inline void dot_five_bit_half(const uint8_t* q, __m256i h, const int8_t* x, __m256i* s) {
    __m256i s16[T];
    clear<T>(s16);
    dot_five_bit_group<T, kFirstGroup>(q, h, x, s16);
    dot_five_bit_group<T, kFirstGroup + 1>(q, h, x, s16);
    dot_five_bit_group<T, kFirstGroup + 2>(q, h, x, s16);
    dot_five_bit_group<T, kFirstGroup + 3>(q, h, x, s16);
    widen<T>(s16, s);
}

// The same with the fifth bits at h.
template <int T>
inline void dot_five_bit(const uint8_t* q, const uint8_t* h, const int8_t* x, __m256i* s) {
    const __m256i bits = load_bytes(h);
    dot_five_bit_half<T, 0>(q, bits, x, s);
    dot_five_bit_half<T, 4>(q, bits, x, s);
}

// Four columns of half v of a Q6_K sub-block: nibbles from vector i, two high bits from bits 2i and 2i + 1 of h.
template <int T, int v, int i>
inline void dot_six_bit_group(const uint8_t* q, __m256i h, const int8_t* x, __m256i* s16) {
    const __m256i vector = load_bytes(q + 64 * i);
    const __m256i low = v == 0 ? low_nibbles(vector) : high_nibbles(vector);
    const __m256i high = _mm256_and_si256(move_bit<2 * i, 4>(h), _mm256_set1_epi8(48));
    dot4<T>(_mm256_or_si256(low, high), x + 4 * T * (4 * v + i), s16);
}

// s[t] += columns 16v .. 16v + 15 of a Q6_K sub-block times x; h = their high bits.
template <int T, int v>
inline void dot_six_bit_half(const uint8_t* q, const uint8_t* h, const int8_t* x, __m256i* s) {
    const __m256i bits = load_bytes(h);
    __m256i s16[T];
    clear<T>(s16);
    dot_six_bit_group<T, v, 0>(q, bits, x, s16);
    dot_six_bit_group<T, v, 1>(q, bits, x, s16);
    widen<T>(s16, s);
    clear<T>(s16);
    dot_six_bit_group<T, v, 2>(q, bits, x, s16);
    dot_six_bit_group<T, v, 3>(q, bits, x, s16);
    widen<T>(s16, s);
}

// s[t] += (q - 128) of 32 columns times x: w * x = |w| * (x with the sign of w).
template <int T>
inline void dot_int8(const uint8_t* q, const int8_t* x, __m256i* s) {
    TREADLE_UNROLL for (int g = 0; g < 8; ++g) {
        const __m256i w = _mm256_xor_si256(load_bytes(q + 64 * g), _mm256_set1_epi8(-128));
        const __m256i magnitude = _mm256_abs_epi8(w);
        __m256i s16[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) s16[t] =
            _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(repeat32(x + 4 * (T * g + t)), w));
        widen<T>(s16, s);
    }
}

}  // namespace
}  // namespace treadle::avx2
