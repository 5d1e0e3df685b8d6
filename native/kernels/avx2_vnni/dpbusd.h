// Dot products with AVX-VNNI: vpdpbusd adds four unsigned-by-signed products to an int32 lane.
#pragma once

#include "avx2/pass.h"

namespace treadle::avx2_vnni {
namespace {

// As avx2::MaddubsSums.
template <int kBits, int T, int N>
struct DpbusdSums {
    static constexpr int kEightBitZeroPoint = 128;

    __m256i s[avx2::kHalves][N];

    template <class Zero>
    TREADLE_INLINE void start(const Zero& zero) {
        TREADLE_UNROLL for (int n = 0; n < N; ++n) s[0][n] = s[1][n] = zero(n);
    }

    template <int A, int B>
    TREADLE_INLINE void add(const __m256i* a, const __m256i* b, const int8_t* x) {
        add_group(a, x + 4 * T * A);
        add_group(b, x + 4 * T * B);
    }

    template <class Zero>
    TREADLE_INLINE __m256i of(int h, int n, const Zero&) const {
        return s[h][n];
    }

 private:
    TREADLE_INLINE void add_group(const __m256i* w, const int8_t* x) {
        TREADLE_UNROLL for (int n = 0; n < N; ++n) {
            const __m256i token = avx2::repeat32(x + 4 * n);
            TREADLE_UNROLL for (int h = 0; h < avx2::kHalves; ++h) {
                s[h][n] = _mm256_dpbusd_avx_epi32(s[h][n], w[h], token);
                avx2::keep_chain(s[h][n]);
            }
        }
    }
};

}  // namespace
}  // namespace treadle::avx2_vnni
