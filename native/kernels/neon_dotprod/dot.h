// Dot products of four rows at a time with sdot, each token by one lane of a register of activations.
//
// Quants are unsigned in a panel, but those of four to six bits are the same numbers as signed bytes, and a byte of
// Q8_0 becomes its signed weight by flipping its top bit. So signed products do for all, and are exact.
#pragma once

#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

// Integer sums of Q row quads and T tokens. The activations of a sub-block, int8 [8][T][4], are 2 * T whole registers:
// token t of group g is word g * T + t.
template <int T, int Q>
struct SdotSums {
    int32x4_t s[Q][T];

    TREADLE_INLINE void clear() {
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            TREADLE_UNROLL for (int t = 0; t < T; ++t) s[q][t] = vdupq_n_s32(0);
        }
    }

    // Adds the four columns of group A with the weights a[quad] and of group B with b[quad].
    template <int A, int B>
    TREADLE_INLINE void add(const int8x16_t* a, const int8x16_t* b, const int8_t* x) {
        add_group<A>(a, x);
        add_group<B>(b, x);
    }

    // The sums of token t, one per row of quad q.
    TREADLE_INLINE int32x4_t of(int q, int t) const { return s[q][t]; }

 private:
    // Recursion over tokens: the lane has to be a constant.
    template <int G, int t = 0>
    TREADLE_INLINE void add_group(const int8x16_t* w, const int8_t* x) {
        if constexpr (t < T) {
            constexpr int kWord = G * T + t;
            const int8x16_t tokens = vld1q_s8(x + 16 * (kWord / 4));
            TREADLE_UNROLL for (int q = 0; q < Q; ++q) s[q][t] = vdotq_laneq_s32(s[q][t], w[q], tokens, kWord % 4);
            add_group<G, t + 1>(w, x);
        }
    }
};

// Row quads of one pass: with few tokens all four, so that there are enough independent chains, with many two, so that
// the sums stay within half of the 32 registers.
template <int T>
constexpr int kPassQuads = T <= 4 ? kQuads : kQuads / 2;

TREADLE_INLINE int8x16_t low_nibbles(uint8x16_t v) { return vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))); }
TREADLE_INLINE int8x16_t high_nibbles(uint8x16_t v) { return vreinterpretq_s8_u8(vshrq_n_u8(v, 4)); }

// Moves bit `kFrom` of every byte to bit `kTo`; the neighbours that come along are masked by the caller.
template <int kFrom, int kTo>
TREADLE_INLINE uint8x16_t move_bit(uint8x16_t v) {
    if constexpr (kFrom < kTo) return vshlq_n_u8(v, kTo - kFrom);
    if constexpr (kFrom > kTo) return vshrq_n_u8(v, kFrom - kTo);
    return v;
}

// low with the bits of `mask` taken from high.
TREADLE_INLINE int8x16_t merge(uint8_t mask, uint8x16_t high, int8x16_t low) {
    return vbslq_s8(vdupq_n_u8(mask), vreinterpretq_s8_u8(high), low);
}

// sums += groups kPair and kPair + 4 of nibbles at q, a sub-block's bytes of the first row of the pass; then the rest.
template <class Sums, int Q, int kPair = 0>
TREADLE_INLINE void dot_four_bit(const uint8_t* q, const int8_t* x, Sums& sums) {
    if constexpr (kPair < 4) {
        int8x16_t a[Q], b[Q];
        TREADLE_UNROLL for (int i = 0; i < Q; ++i) {
            const uint8x16_t v = vld1q_u8(q + 64 * kPair + 16 * i);
            a[i] = low_nibbles(v);
            b[i] = high_nibbles(v);
        }
        sums.template add<kPair, kPair + 4>(a, b, x);
        dot_four_bit<Sums, Q, kPair + 1>(q, x, sums);
    }
}

// The same with the fifth bits at h.
template <class Sums, int Q, int kPair = 0>
TREADLE_INLINE void dot_five_bit(const uint8_t* q, const uint8_t* h, const int8_t* x, Sums& sums) {
    if constexpr (kPair < 4) {
        int8x16_t a[Q], b[Q];
        TREADLE_UNROLL for (int i = 0; i < Q; ++i) {
            const uint8x16_t v = vld1q_u8(q + 64 * kPair + 16 * i), fifth = vld1q_u8(h + 16 * i);
            a[i] = merge(16, move_bit<kPair, 4>(fifth), low_nibbles(v));
            b[i] = merge(16, move_bit<kPair + 4, 4>(fifth), high_nibbles(v));
        }
        sums.template add<kPair, kPair + 4>(a, b, x);
        dot_five_bit<Sums, Q, kPair + 1>(q, h, x, sums);
    }
}

// sums += (q - 128) of 32 columns times x.
template <class Sums, int Q, int kPair = 0>
TREADLE_INLINE void dot_eight_bit(const uint8_t* q, const int8_t* x, Sums& sums) {
    if constexpr (kPair < 4) {
        const uint8x16_t top = vdupq_n_u8(128);
        int8x16_t a[Q], b[Q];
        TREADLE_UNROLL for (int i = 0; i < Q; ++i) {
            a[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 64 * kPair + 16 * i), top));
            b[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 64 * (kPair + 4) + 16 * i), top));
        }
        sums.template add<kPair, kPair + 4>(a, b, x);
        dot_eight_bit<Sums, Q, kPair + 1>(q, x, sums);
    }
}

// sums += the values that nibbles of 32 columns stand for times x.
template <class Sums, int Q, int kPair = 0>
TREADLE_INLINE void dot_coded(const uint8_t* q, int8x16_t values, const int8_t* x, Sums& sums) {
    if constexpr (kPair < 4) {
        int8x16_t a[Q], b[Q];
        TREADLE_UNROLL for (int i = 0; i < Q; ++i) {
            const uint8x16_t v = vld1q_u8(q + 64 * kPair + 16 * i);
            a[i] = vqtbl1q_s8(values, vandq_u8(v, vdupq_n_u8(15)));
            b[i] = vqtbl1q_s8(values, vshrq_n_u8(v, 4));
        }
        sums.template add<kPair, kPair + 4>(a, b, x);
        dot_coded<Sums, Q, kPair + 1>(q, values, x, sums);
    }
}

// Group g of bit pairs, 64 bytes for each 16 columns.
template <int g>
TREADLE_INLINE int8x16_t two_bit_group(const uint8_t* q) {
    const uint8x16_t pairs = move_bit<2 * (g % 4), 0>(vld1q_u8(q + 64 * (g / 4)));
    return vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(3)));
}

// sums += columns 16v .. 16v + 15 of sub-block j times x, from group 4v + i on. Format::weights<g>(block, quad, j) are
// group g of four rows.
template <class Format, class Sums, int Q, int v, int i = 0>
TREADLE_INLINE void dot_half(const typename Format::Panel& block, int quad, int j, const int8_t* x, Sums& sums) {
    if constexpr (i < 4) {
        int8x16_t a[Q], b[Q];
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            a[q] = Format::template weights<4 * v + i>(block, quad + q, j);
            b[q] = Format::template weights<4 * v + i + 1>(block, quad + q, j);
        }
        sums.template add<4 * v + i, 4 * v + i + 1>(a, b, x);
        dot_half<Format, Sums, Q, v, i + 2>(block, quad, j, x, sums);
    }
}

}  // namespace
}  // namespace treadle::neon_dotprod
