// The product of the formats with blocks of 256 columns, for any way to sum up dot products (see MaddubsSums).
#pragma once

#include "pass.h"

namespace treadle::avx2 {
namespace {

// Sub-block j of a block of Q4_K or Q5_K.
template <class Panel>
struct SubBlockQ45K {
    static constexpr bool kFiveBits = requires(Panel p) { p.h; };
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        if constexpr (kFiveBits)
            return five_bit_group<g>(block.q[j] + 32 * h, block.h[j] + 32 * h);
        else
            return four_bit_group<g>(block.q[j] + 32 * h);
    }

    TREADLE_INLINE __m256 scale(int h) const {
        const __m256i bits = _mm256_and_si256(widen_bytes(block.s[j] + kLanes * h), _mm256_set1_epi32(63));
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), _mm256_cvtepi32_ps(bits));
    }

    TREADLE_INLINE __m256 min(int h) const {
        const __m256i nibbles = _mm256_srli_epi32(widen_bytes(block.m[j / 2] + kLanes * h), 4 * (j % 2));
        const __m256i high = _mm256_srli_epi32(widen_bytes(block.s[j] + kLanes * h), 6);
        const __m256i bits =
            _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)), _mm256_slli_epi32(high, 4));
        return _mm256_mul_ps(load_f16(block.dmin + kLanes * h), _mm256_cvtepi32_ps(bits));
    }
};

template <template <int, int, int> class Sums, class Panel>
struct ProductQ45K {
    static constexpr int kSubBlockBytes = sizeof(Panel) / 8;

    template <PassKind kKind, int T, int N>
    static TREADLE_INLINE void add(const char* panel, int64_t i, int token, const ActTile* tile, Unpacked* unpacked,
                                   float (*acc)[kPanelRows]) {
        const SubBlockQ45K<Panel> source{reinterpret_cast<const Panel*>(panel)[i / 8], static_cast<int>(i % 8)};
        const int8_t* x = tile->q + 4 * (8 * T * i + token);
        const auto zero = [](int) { return _mm256_setzero_si256(); };
        Sums<source.kFiveBits ? 5 : 4, T, N> sums;
        sums.start(zero);
        add_pair<kKind, 0, 4>(source, unpacked, x, sums);
        add_pair<kKind, 1, 5>(source, unpacked, x, sums);
        add_pair<kKind, 2, 6>(source, unpacked, x, sums);
        add_pair<kKind, 3, 7>(source, unpacked, x, sums);
        __m256 scale[kHalves], min[kHalves];
        TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
            scale[h] = factor<kKind>([&] { return source.scale(h); }, h, unpacked->factors[0]);
            min[h] = factor<kKind>([&] { return source.min(h); }, h, unpacked->factors[1]);
        }
        const int64_t first = T * i + token;
        TREADLE_UNROLL for (int n = 0; n < N; ++n) {
            const __m256 x_scale = _mm256_set1_ps(tile->scale[first + n]);
            const __m256 x_sum = _mm256_set1_ps(tile->scaled_sum[first + n]);
            TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
                float* to = acc[token + n] + kLanes * h;
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums.of(h, n, zero)), scale[h]);
                const __m256 total = _mm256_fmadd_ps(scaled, x_scale, _mm256_load_ps(to));
                _mm256_store_ps(to, _mm256_fnmadd_ps(min[h], x_sum, total));
            }
        }
    }
};

// Sub-block j of a block of Q6_K.
struct SubBlockQ6K {
    static constexpr bool kPlain = false;
    const PanelQ6_K& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return six_bit_group<g>(block.q[j] + 32 * h, block.h[j][0] + 32 * h);
    }

    // Of columns 16 * v .. 16 * v + 15.
    TREADLE_INLINE __m256 scale(int h, int v) const {
        // The scales of both halves of the columns as an int16 pair per row.
        const __m256i pairs =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.s[j][kLanes * h])));
        const __m256i picked = _mm256_srai_epi32(v == 0 ? _mm256_slli_epi32(pairs, 16) : pairs, 16);
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), _mm256_cvtepi32_ps(picked));
    }
};

template <template <int, int, int> class Sums>
struct ProductQ6K {
    static constexpr int kSubBlockBytes = sizeof(PanelQ6_K) / 8;

    // g = the sums of columns 16 * v .. 16 * v + 15 times their scales, on top of the sums before.
    template <PassKind kKind, int T, int N, int v>
    static TREADLE_INLINE void add_half(const SubBlockQ6K& source, int64_t i, int token, const ActTile* tile,
                                        Unpacked* unpacked, __m256 g[kHalves][N]) {
        const int8_t* x = tile->q + 4 * (8 * T * i + token);
        const auto zero = [&](int n) { return repeat32(tile->zero16 + T * (2 * i + v) + token + n); };
        Sums<6, T, N> sums;
        sums.start(zero);
        add_pair<kKind, 4 * v, 4 * v + 1>(source, unpacked, x, sums);
        add_pair<kKind, 4 * v + 2, 4 * v + 3>(source, unpacked, x, sums);
        TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
            const __m256 scale = factor<kKind>([&] { return source.scale(h, v); }, h, unpacked->factors[v]);
            TREADLE_UNROLL for (int n = 0; n < N; ++n) {
                const __m256 s = _mm256_cvtepi32_ps(sums.of(h, n, zero));
                g[h][n] = v == 0 ? _mm256_mul_ps(s, scale) : _mm256_fmadd_ps(s, scale, g[h][n]);
            }
        }
    }

    template <PassKind kKind, int T, int N>
    static TREADLE_INLINE void add(const char* panel, int64_t i, int token, const ActTile* tile, Unpacked* unpacked,
                                   float (*acc)[kPanelRows]) {
        const SubBlockQ6K source{reinterpret_cast<const PanelQ6_K*>(panel)[i / 8], static_cast<int>(i % 8)};
        __m256 g[kHalves][N];
        add_half<kKind, T, N, 0>(source, i, token, tile, unpacked, g);
        add_half<kKind, T, N, 1>(source, i, token, tile, unpacked, g);
        TREADLE_UNROLL for (int n = 0; n < N; ++n) {
            const __m256 x_scale = _mm256_set1_ps(tile->scale[T * i + token + n]);
            TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
                float* to = acc[token + n] + kLanes * h;
                _mm256_store_ps(to, _mm256_fmadd_ps(g[h][n], x_scale, _mm256_load_ps(to)));
            }
        }
    }
};

}  // namespace
}  // namespace treadle::avx2
