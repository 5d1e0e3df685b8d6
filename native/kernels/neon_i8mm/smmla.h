// Dot products of two rows with two tokens at a time: smmla multiplies a 2 x 8 matrix by an 8 x 2 one.
#pragma once

#include "neon_dotprod/dot.h"

namespace treadle::neon_i8mm {
namespace {

// As neon_dotprod::SdotSums, with tokens in pairs: of an odd number the last pair repeats the token before it, so that
// no load leaves the tile. Any eight columns will do as long as weights and activations agree, so weights of two groups
// are interleaved as they stand: word by word, two rows of a quad a register.
template <int T, int Q>
struct SmmlaSums {
    static constexpr int kPairs = (T + 1) / 2;

    int32x4_t s[Q][kPairs][2];  // rows 0, 1 and rows 2, 3 of the quad: row 0 of both tokens, row 1 of both tokens

    TREADLE_INLINE void clear() {
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            TREADLE_UNROLL for (int p = 0; p < kPairs; ++p) s[q][p][0] = s[q][p][1] = vdupq_n_s32(0);
        }
    }

    template <int A, int B>
    TREADLE_INLINE void add(const int8x16_t* a, const int8x16_t* b, const int8_t* x) {
        int8x16_t low[Q], high[Q];
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            low[q] = interleave_low(a[q], b[q]);
            high[q] = vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a[q]), vreinterpretq_s32_s8(b[q])));
        }
        TREADLE_UNROLL for (int p = 0; p < kPairs; ++p) {
            const int token = first_token(p);
            const int8x16_t tokens =
                interleave_low(load_pair(x + 4 * (A * T + token)), load_pair(x + 4 * (B * T + token)));
            TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
                s[q][p][0] = vmmlaq_s32(s[q][p][0], low[q], tokens);
                s[q][p][1] = vmmlaq_s32(s[q][p][1], high[q], tokens);
            }
        }
    }

    TREADLE_INLINE int32x4_t of(int q, int t) const {
        const int32x4_t* pair = s[q][t / 2];
        return t == first_token(t / 2) ? vuzp1q_s32(pair[0], pair[1]) : vuzp2q_s32(pair[0], pair[1]);
    }

 private:
    static constexpr int first_token(int pair) { return 2 * pair + 2 <= T ? 2 * pair : T - 2; }

    static TREADLE_INLINE int8x16_t load_pair(const int8_t* x) { return vcombine_s8(vld1_s8(x), vcreate_s8(0)); }

    static TREADLE_INLINE int8x16_t interleave_low(int8x16_t a, int8x16_t b) {
        return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
    }
};

template <int T, int Q>
struct Sums : SmmlaSums<T, Q> {};

// One token has no partner.
template <int Q>
struct Sums<1, Q> : neon_dotprod::SdotSums<1, Q> {};

}  // namespace
}  // namespace treadle::neon_i8mm
