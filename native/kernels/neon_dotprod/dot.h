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

// Four columns of half v of a Q6_K sub-block: nibbles from vector i, two high bits from bits 2i and 2i + 1 of h.
template <int v, int i>
TREADLE_INLINE int8x16_t six_bit_group(const uint8_t* q, uint8x16_t h) {
    const uint8x16_t vector = vld1q_u8(q + 64 * i);
    return merge(48, move_bit<2 * i, 4>(h), v == 0 ? low_nibbles(vector) : high_nibbles(vector));
}

// sums += columns 16v .. 16v + 15 of a Q6_K sub-block times x, from group 4v + i on; h = their high bits.
template <class Sums, int Q, int v, int i = 0>
TREADLE_INLINE void dot_six_bit_half(const uint8_t* q, const uint8_t* h, const int8_t* x, Sums& sums) {
    if constexpr (i < 4) {
        int8x16_t a[Q], b[Q];
        TREADLE_UNROLL for (int quad = 0; quad < Q; ++quad) {
            const uint8x16_t high = vld1q_u8(h + 16 * quad);
            a[quad] = six_bit_group<v, i>(q + 16 * quad, high);
            b[quad] = six_bit_group<v, i + 1>(q + 16 * quad, high);
        }
        sums.template add<4 * v + i, 4 * v + i + 1>(a, b, x);
        dot_six_bit_half<Sums, Q, v, i + 2>(q, h, x, sums);
    }
}

}  // namespace
}  // namespace treadle::neon_dotprod
