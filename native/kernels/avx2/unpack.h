// Unpacks quants of one half of a panel's sub-block (8 rows of 32 columns). A half is 32 bytes of each 64-byte vector
// of the panel (see formats.h): pointers to quants point at the half's first byte, and groups are 64 bytes apart. A
// result holds four columns of each row as unsigned bytes.
#pragma once

#include "vec.h"

namespace treadle::avx2 {
namespace {

TREADLE_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
TREADLE_INLINE __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

// Moves bit `kFrom` of every byte to bit `kTo`; the neighbours' bits that come along are masked by the caller.
template <int kFrom, int kTo>
TREADLE_INLINE __m256i move_bit(__m256i v) {
    if constexpr (kFrom < kTo) return _mm256_slli_epi16(v, kTo - kFrom);
    if constexpr (kFrom > kTo) return _mm256_srli_epi16(v, kFrom - kTo);
    return v;
}

// Group g of nibbles.
template <int g>
TREADLE_INLINE __m256i four_bit_group(const uint8_t* q) {
    const __m256i v = load_bytes(q + 64 * (g % 4));
    return g < 4 ? low_nibbles(v) : high_nibbles(v);
}

// What its codes stand for, as unsigned bytes.
template <int g, int kZeroPoint>
TREADLE_INLINE __m256i coded_group(const uint8_t* q, const int8_t* values) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
    const __m256i unsigned_values = _mm256_add_epi8(both, _mm256_set1_epi8(static_cast<char>(kZeroPoint)));
    return _mm256_shuffle_epi8(unsigned_values, four_bit_group<g>(q));
}

// Group g of bit pairs, 64 bytes for each 16 columns.
template <int g>
TREADLE_INLINE __m256i two_bit_group(const uint8_t* q) {
    return _mm256_and_si256(move_bit<2 * (g % 4), 0>(load_bytes(q + 64 * (g / 4))), _mm256_set1_epi8(3));
}

// The same with the third bits at h.
template <int g>
TREADLE_INLINE __m256i three_bit_group(const uint8_t* q, const uint8_t* h) {
    const __m256i third = _mm256_and_si256(move_bit<g, 2>(load_bytes(h)), _mm256_set1_epi8(4));
    return _mm256_or_si256(two_bit_group<g>(q), third);
}

// Group g of nibbles with the fifth bits at h.
template <int g>
TREADLE_INLINE __m256i five_bit_group(const uint8_t* q, const uint8_t* h) {
    const __m256i fifth = _mm256_and_si256(move_bit<g, 4>(load_bytes(h)), _mm256_set1_epi8(16));
    return _mm256_or_si256(four_bit_group<g>(q), fifth);
}

// Group g of Q6_K: the sub-block's high bits are 128 bytes at h, 64 for each 16 columns.
template <int g>
TREADLE_INLINE __m256i six_bit_group(const uint8_t* q, const uint8_t* h) {
    const __m256i bits = load_bytes(h + 64 * (g / 4));
    const __m256i high = _mm256_and_si256(move_bit<2 * (g % 4), 4>(bits), _mm256_set1_epi8(48));
    return _mm256_or_si256(four_bit_group<g>(q), high);
}

}  // namespace
}  // namespace treadle::avx2
