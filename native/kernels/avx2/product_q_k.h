// The product of the formats with blocks of 256 columns, for any way to sum up dot products (see MaddubsSums).
#pragma once

#include "pass.h"

namespace treadle::avx2 {
namespace {

// Sources for ProductWhole: sub-block j of a block with one scale, the factor of its rows, and the zero point
// or the minimum.
template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr int kBits = requires(Panel p) { p.h; } ? 5 : 4, kZeroPoint = 0;
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        if constexpr (kBits == 5)
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

struct IQ4_XS {
    using Panel = PanelIQ4_XS;
    static constexpr int kBits = 8, kZeroPoint = kIq4ZeroPoint;
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return coded_group<g, kIq4ZeroPoint>(block.q[j] + 32 * h, kIq4Values);
    }

    TREADLE_INLINE __m256 scale(int h) const {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.s[j] + kLanes * h));
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    }
};

struct TQ2_0 {
    using Panel = PanelTQ2_0;
    static constexpr int kBits = 4, kZeroPoint = 1;
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return two_bit_group<g>(block.q[j][0] + 32 * h);
    }

    TREADLE_INLINE __m256 scale(int h) const { return load_f16(block.d + kLanes * h); }
};

template <template <int, int, int> class Sums, class Source>
struct ProductWhole {
    using Panel = typename Source::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.dmin; };
    static constexpr int kSubBlockBytes = sizeof(Panel) / 8;

    template <PassKind kKind, int T, int N>
    static TREADLE_INLINE void add(const char* panel, int64_t i, int token, const ActTile* tile, Unpacked* unpacked,
                                   float (*acc)[kPanelRows]) {
        const Source source{reinterpret_cast<const Panel*>(panel)[i / 8], static_cast<int>(i % 8)};
        const int8_t* x = tile->q + 4 * (8 * T * i + token);
        const int64_t first = T * i + token;
        const auto zero = [&](int n) {
            return minus_zero_point<left_zero_point<Sums, Source>>(tile->zero32 + first + n);
        };
        Sums<Source::kBits, T, N> sums;
        sums.start(zero);
        add_pair<kKind, 0, 4>(source, unpacked, x, sums);
        add_pair<kKind, 1, 5>(source, unpacked, x, sums);
        add_pair<kKind, 2, 6>(source, unpacked, x, sums);
        add_pair<kKind, 3, 7>(source, unpacked, x, sums);
        __m256 scale[kHalves], min[kHalves];
        TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
            scale[h] = factor<kKind>([&] { return source.scale(h); }, h, unpacked->factors[0]);
            if constexpr (kHasMinimum) min[h] = factor<kKind>([&] { return source.min(h); }, h, unpacked->factors[1]);
        }
        TREADLE_UNROLL for (int n = 0; n < N; ++n) {
            const __m256 x_scale = _mm256_set1_ps(tile->scale[first + n]);
            TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
                float* to = acc[token + n] + kLanes * h;
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums.of(h, n, zero)), scale[h]);
                __m256 total = _mm256_fmadd_ps(scaled, x_scale, _mm256_load_ps(to));
                if constexpr (kHasMinimum)
                    total = _mm256_fnmadd_ps(min[h], _mm256_set1_ps(tile->scaled_sum[first + n]), total);
                _mm256_store_ps(to, total);
            }
        }
    }
};

// Sources for ProductHalves: sub-block j of a block with a scale for each 16 columns, v = 0 or 1, and the zero point or
// minimums.
struct Q6K {
    using Panel = PanelQ6_K;
    static constexpr int kZeroPoint = 32;
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return six_bit_group<g>(block.q[j] + 32 * h, block.h[j][0] + 32 * h);
    }

    TREADLE_INLINE __m256 scale(int h, int v) const {
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), signed_half(block.s[j] + kLanes * h, v));
    }
};

struct Q3K {
    using Panel = PanelQ3_K;
    static constexpr int kZeroPoint = 4;
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return three_bit_group<g>(block.q[j][0] + 32 * h, block.h[j] + 32 * h);
    }

    TREADLE_INLINE __m256 scale(int h, int v) const {
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), signed_half(block.s[j] + kLanes * h, v));
    }
};

struct Q2K {
    using Panel = PanelQ2_K;
    static constexpr int kZeroPoint = 0;
    static constexpr bool kPlain = false;
    const Panel& block;
    int j;

    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return two_bit_group<g>(block.q[j][0] + 32 * h);
    }

    TREADLE_INLINE __m256 scale(int h, int v) const {
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), nibble(h, 2 * v));
    }

    TREADLE_INLINE __m256 min(int h, int v) const {
        const __m256 fraction = _mm256_mul_ps(nibble(h, 2 * v + 1), _mm256_set1_ps(1.0f / 32));
        return _mm256_mul_ps(load_f16(block.dmin + kLanes * h), fraction);
    }

 private:
    // The n-th nibble of each row's pair of bytes.
    TREADLE_INLINE __m256 nibble(int h, int n) const {
        const __m256i pairs =
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.s[j] + kLanes * h)));
        return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(pairs, 4 * n), _mm256_set1_epi32(15)));
    }
};

template <template <int, int, int> class Sums, class Source>
struct ProductHalves {
    using Panel = typename Source::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.dmin; };
    static constexpr int kSubBlockBytes = sizeof(Panel) / 8;

    // g = the sums of columns 16 * v .. 16 * v + 15 times their scales, on top of the sums before.
    template <PassKind kKind, int T, int N, int v>
    static TREADLE_INLINE void add_half(const Source& source, int64_t i, int token, const ActTile* tile,
                                        Unpacked* unpacked, __m256 g[kHalves][N]) {
        const int8_t* x = tile->q + 4 * (8 * T * i + token);
        const int32_t* zero16 = tile->zero16 + T * (2 * i + v) + token;
        const auto zero = [&](int n) { return minus_zero_point_16<Source::kZeroPoint>(zero16 + n); };
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

    template <PassKind kKind, int T, int N, int v>
    static TREADLE_INLINE void add_minimums(const Source& source, int64_t i, int token, const ActTile* tile,
                                            Unpacked* unpacked, __m256 g[kHalves][N]) {
        const int32_t* zero16 = tile->zero16 + T * (2 * i + v) + token;
        TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
            const __m256 min = factor<kKind>([&] { return source.min(h, v); }, h, unpacked->factors[2 + v]);
            TREADLE_UNROLL for (int n = 0; n < N; ++n) g[h][n] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(repeat32(zero16 + n)), min, g[h][n]);
        }
    }

    template <PassKind kKind, int T, int N>
    static TREADLE_INLINE void add(const char* panel, int64_t i, int token, const ActTile* tile, Unpacked* unpacked,
                                   float (*acc)[kPanelRows]) {
        const Source source{reinterpret_cast<const Panel*>(panel)[i / 8], static_cast<int>(i % 8)};
        __m256 g[kHalves][N];
        add_half<kKind, T, N, 0>(source, i, token, tile, unpacked, g);
        add_half<kKind, T, N, 1>(source, i, token, tile, unpacked, g);
        if constexpr (kHasMinimum) {
            add_minimums<kKind, T, N, 0>(source, i, token, tile, unpacked, g);
            add_minimums<kKind, T, N, 1>(source, i, token, tile, unpacked, g);
        }
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
