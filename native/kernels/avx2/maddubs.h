// Dot products without VNNI.
//
// vpmaddubsw adds two unsigned-by-signed products in a saturating int16. Activations are -127..127, so an int16 sum of
// 2 * n products cannot saturate while n * 2 * max(q) * 127 <= 32767:
//   four bits  8 groups  8 * 2 * 15 * 127 = 30480
//   five bits  4 groups  4 * 2 * 31 * 127 = 31496
//   six bits   2 groups  2 * 2 * 63 * 127 = 32004
//   int8       1 group       2 * 128 * 127 = 32512, |w| <= 128
// After so many groups, vpmaddwd by ones widens to the int32 lane of each row.
#pragma once

#include "pass.h"

namespace treadle::avx2 {
namespace {

TREADLE_INLINE __m256i widen(__m256i s16) { return _mm256_madd_epi16(s16, _mm256_set1_epi16(1)); }

// Sums of 16 rows, in two halves, and N of the T tokens of a tile, over the groups of a sub-block that are added. They
// start at zero(token), which the caller gives again when it asks for them.
template <int kBits, int T, int N>
struct MaddubsSums {
    // Of weights q with eight bits the sums are of q - 128.
    static constexpr int kEightBitZeroPoint = 0;

    // Of four bits the products stay int16 up to the end, of five bits those of two pairs of groups do.
    __m256i s[kHalves][N];
    __m256i narrow[kHalves][N];

    template <class Zero>
    TREADLE_INLINE void start(const Zero& zero) {
        if constexpr (kBits == 4) return;
        TREADLE_UNROLL for (int n = 0; n < N; ++n) s[0][n] = s[1][n] = zero(n);
    }

    // Adds groups A and B with the weights a[half] and b[half], in the order (0, 4), (1, 5), (2, 6), (3, 7), or any for
    // six and eight bits; x = the first token's quants, int8 [8][T][4].
    template <int A, int B>
    TREADLE_INLINE void add(const __m256i* a, const __m256i* b, const int8_t* x) {
        TREADLE_UNROLL for (int n = 0; n < N; ++n) {
            const __m256i x_a = repeat32(x + 4 * (T * A + n)), x_b = repeat32(x + 4 * (T * B + n));
            TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
                if constexpr (kBits == 4) {
                    const __m256i first = _mm256_maddubs_epi16(a[h], x_a);
                    s[h][n] = A == 0 ? first : _mm256_add_epi16(s[h][n], first);
                    keep_chain(s[h][n]);
                    s[h][n] = _mm256_add_epi16(s[h][n], _mm256_maddubs_epi16(b[h], x_b));
                } else if constexpr (kBits == 8) {
                    s[h][n] = _mm256_add_epi32(s[h][n], widen(signed_products(a[h], x_a)));
                    keep_chain(s[h][n]);
                    s[h][n] = _mm256_add_epi32(s[h][n], widen(signed_products(b[h], x_b)));
                } else {
                    __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(a[h], x_a), _mm256_maddubs_epi16(b[h], x_b));
                    if constexpr (kBits == 5 && A % 2 == 0) {
                        narrow[h][n] = both;
                        keep_chain(narrow[h][n]);
                        continue;
                    }
                    if constexpr (kBits == 5) both = _mm256_add_epi16(narrow[h][n], both);
                    s[h][n] = _mm256_add_epi32(s[h][n], widen(both));
                }
                keep_chain(s[h][n]);
            }
        }
    }

    // The sums of token n, one per row of half h.
    template <class Zero>
    TREADLE_INLINE __m256i of(int h, int n, const Zero& zero) const {
        return kBits == 4 ? _mm256_add_epi32(widen(s[h][n]), zero(n)) : s[h][n];
    }

 private:
    // (q - 128) * x = |q - 128| * (x with the sign of q - 128)
    static TREADLE_INLINE __m256i signed_products(__m256i q, __m256i x) {
        const __m256i w = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    }
};

}  // namespace
}  // namespace treadle::avx2
