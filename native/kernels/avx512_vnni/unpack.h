// Weights of a 32-column sub-block as unsigned bytes, four columns of 16 rows a vector (see formats.h), and their dot
// products. Groups are unpacked right before use, so only one or two of the eight are live beside the accumulators.
#pragma once

#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

inline __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }

// (a & mask) | b in one instruction.
inline __m512i merge(__m512i a, __m512i mask, __m512i b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xEA); }

// Moves bit `kFrom` of every byte to bit `kTo`; the neighbours' bits that come along are masked by the caller.
template <int kFrom, int kTo>
inline __m512i move_bit(__m512i v) {
    if constexpr (kFrom < kTo) return _mm512_slli_epi16(v, kTo - kFrom);
    if constexpr (kFrom > kTo) return _mm512_srli_epi16(v, kFrom - kTo);
    return v;
}

// The 16 values of four-bit codes as unsigned bytes, once for each 128 bits.
template <int kZeroPoint>
inline __m512i load_values(const int8_t* values) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return _mm512_add_epi8(_mm512_broadcast_i32x4(v), _mm512_set1_epi8(static_cast<char>(kZeroPoint)));
}

// Group g of bit pairs: h[v] has those of 16 columns.
template <int g>
inline __m512i two_bit_group(const uint8_t (*h)[64]) {
    return _mm512_and_si512(move_bit<2 * (g % 4), 0>(_mm512_loadu_si512(h[g / 4])), _mm512_set1_epi8(3));
}

template <int T, int kGroup>
inline void dot_four_bit_pair(const uint8_t* q, const int8_t* x, __m512i* s) {
    const __m512i v = _mm512_loadu_si512(q + 64 * kGroup);
    dot4<T>(low_nibbles(v), x + 4 * T * kGroup, s);
    dot4<T>(high_nibbles(v), x + 4 * T * (kGroup + 4), s);
}

// s[t] += nibbles of 32 columns times x [8][T][4].
template <int T>
inline void dot_four_bit(const uint8_t* q, const int8_t* x, __m512i* s) {
    dot_four_bit_pair<T, 0>(q, x, s);
    dot_four_bit_pair<T, 1>(q, x, s);
    dot_four_bit_pair<T, 2>(q, x, s);
    dot_four_bit_pair<T, 3>(q, x, s);
}

template <int T, int kGroup>
inline void dot_five_bit_pair(const uint8_t* q, __m512i h, const int8_t* x, __m512i* s) {
    const __m512i fifth = _mm512_set1_epi8(16);
    const __m512i v = _mm512_loadu_si512(q + 64 * kGroup);
    dot4<T>(merge(move_bit<kGroup, 4>(h), fifth, low_nibbles(v)), x + 4 * T * kGroup, s);
    dot4<T>(merge(move_bit<kGroup + 4, 4>(h), fifth, high_nibbles(v)), x + 4 * T * (kGroup + 4), s);
}

// The same with the fifth bits at h.
template <int T>
inline void dot_five_bit(const uint8_t* q, const uint8_t* h, const int8_t* x, __m512i* s) {
    const __m512i bits = _mm512_loadu_si512(h);
    dot_five_bit_pair<T, 0>(q, bits, x, s);
    dot_five_bit_pair<T, 1>(q, bits, x, s);
    dot_five_bit_pair<T, 2>(q, bits, x, s);
    dot_five_bit_pair<T, 3>(q, bits, x, s);
}

template <int T, int kGroup = 0>
inline void dot_coded_pairs(const uint8_t* q, __m512i values, const int8_t* x, __m512i* s) {
    if constexpr (kGroup < 4) {
        const __m512i v = _mm512_loadu_si512(q + 64 * kGroup);
        dot4<T>(_mm512_shuffle_epi8(values, low_nibbles(v)), x + 4 * T * kGroup, s);
        dot4<T>(_mm512_shuffle_epi8(values, high_nibbles(v)), x + 4 * T * (kGroup + 4), s);
        dot_coded_pairs<T, kGroup + 1>(q, values, x, s);
    }
}

// s[t] += the values that nibbles of 32 columns stand for times x.
template <int T, int kZeroPoint>
inline void dot_coded(const uint8_t* q, const int8_t* values, const int8_t* x, __m512i* s) {
    dot_coded_pairs<T>(q, load_values<kZeroPoint>(values), x, s);
}

template <int T>
inline void dot_eight_bit(const uint8_t* q, const int8_t* x, __m512i* s) {
    TREADLE_UNROLL for (int g = 0; g < 8; ++g) dot4<T>(_mm512_loadu_si512(q + 64 * g), x + 4 * T * g, s);
}

}  // namespace
}  // namespace treadle::avx512_vnni
