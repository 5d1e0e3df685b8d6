// Weights of a 32-column sub-block as unsigned bytes, four columns of 16 rows a vector (see formats.h). Groups are
// unpacked right before use, so only one or two of the eight are live beside the accumulators.
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

// Group g of nibbles: the vectors of groups g and g + 4 are the halves of one.
template <int g>
inline __m512i four_bit_group(const uint8_t* q) {
    const __m512i v = _mm512_loadu_si512(q + 64 * (g % 4));
    return g < 4 ? low_nibbles(v) : high_nibbles(v);
}

// The same with the fifth bits at h.
template <int g>
inline __m512i five_bit_group(const uint8_t* q, const uint8_t* h) {
    return merge(move_bit<g, 4>(_mm512_loadu_si512(h)), _mm512_set1_epi8(16), four_bit_group<g>(q));
}

// The values that nibbles stand for.
template <int g, int kZeroPoint>
inline __m512i coded_group(const uint8_t* q, const int8_t* values) {
    return _mm512_shuffle_epi8(load_values<kZeroPoint>(values), four_bit_group<g>(q));
}

// Group g of bit pairs: h[v] has those of 16 columns.
template <int g>
inline __m512i two_bit_group(const uint8_t (*h)[64]) {
    return _mm512_and_si512(move_bit<2 * (g % 4), 0>(_mm512_loadu_si512(h[g / 4])), _mm512_set1_epi8(3));
}

}  // namespace
}  // namespace treadle::avx512_vnni
