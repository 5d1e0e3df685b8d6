// The product of the formats with blocks of 32 columns, for any way to sum up dot products (see MaddubsSums).
#pragma once

#include "pass.h"

namespace treadle::avx2 {
namespace {

// What differs between the formats: how weights are unpacked, and the zero point (0 for none) or the minimum.
template <class PanelType, int kZero>
struct FourBit {
    using Panel = PanelType;
    static constexpr int kBits = 4, kZeroPoint = kZero;
    static constexpr bool kPlain = false;
    const Panel& block;
    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return four_bit_group<g>(block.q + 32 * h);
    }
};

template <class PanelType, int kZero>
struct FiveBit {
    using Panel = PanelType;
    static constexpr int kBits = 5, kZeroPoint = kZero;
    static constexpr bool kPlain = false;
    const Panel& block;
    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return five_bit_group<g>(block.q + 32 * h, block.h + 32 * h);
    }
};

// Four-bit codes of values that, made unsigned, have kWidth bits.
template <class PanelType, const int8_t (&kValues)[16], int kWidth, int kZero>
struct Coded {
    using Panel = PanelType;
    static constexpr int kBits = kWidth, kZeroPoint = kZero;
    static constexpr bool kPlain = false;
    const Panel& block;
    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return coded_group<g, kZero>(block.q + 32 * h, kValues);
    }
};

using Q4_0 = FourBit<PanelQ4_0, 8>;
using Q4_1 = FourBit<PanelQ4_1, 0>;
using Q5_0 = FiveBit<PanelQ5_0, 16>;
using Q5_1 = FiveBit<PanelQ5_1, 0>;
using IQ4_NL = Coded<PanelIQ4_NL, kIq4Values, 8, kIq4ZeroPoint>;
using MXFP4 = Coded<PanelMXFP4, kMxfp4Values, 5, kMxfp4ZeroPoint>;

struct Q8_0 {
    using Panel = PanelQ8_0;
    static constexpr int kBits = 8, kZeroPoint = 128;
    static constexpr bool kPlain = true;
    const Panel& block;
    template <int g>
    TREADLE_INLINE __m256i weights(int h) const {
        return load_bytes(block.q + 64 * g + 32 * h);
    }
};

template <class Panel>
TREADLE_INLINE __m256 factors(const Panel& block, int h) {
    return load_f16(block.d + kLanes * h);
}
TREADLE_INLINE __m256 factors(const PanelMXFP4& block, int h) { return load_half_e8m0(block.e + kLanes * h); }

template <template <int, int, int> class Sums, class Format>
struct Product32 {
    using Panel = typename Format::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.m; };
    static constexpr int kSubBlockBytes = sizeof(Panel);

    template <PassKind kKind, int T, int N>
    static TREADLE_INLINE void add(const char* panel, int64_t b, int token, const ActTile* tile, Unpacked* unpacked,
                                   float (*acc)[kPanelRows]) {
        const Panel& block = reinterpret_cast<const Panel*>(panel)[b];
        const Format source{block};
        const int64_t first = T * b + token;
        const int8_t* x = tile->q + 4 * (8 * T * b + token);
        const auto zero = [&](int n) {
            return minus_zero_point<left_zero_point<Sums, Format>>(tile->zero32 + first + n);
        };
        Sums<Format::kBits, T, N> sums;
        sums.start(zero);
        add_pair<kKind, 0, 4>(source, unpacked, x, sums);
        add_pair<kKind, 1, 5>(source, unpacked, x, sums);
        add_pair<kKind, 2, 6>(source, unpacked, x, sums);
        add_pair<kKind, 3, 7>(source, unpacked, x, sums);
        __m256 d[kHalves];
        TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) d[h] = factors(block, h);
        TREADLE_UNROLL for (int n = 0; n < N; ++n) {
            const __m256 x_scale = _mm256_set1_ps(tile->scale[first + n]);
            TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
                float* to = acc[token + n] + kLanes * h;
                const __m256 s = _mm256_cvtepi32_ps(sums.of(h, n, zero));
                _mm256_store_ps(to, _mm256_fmadd_ps(s, _mm256_mul_ps(d[h], x_scale), _mm256_load_ps(to)));
            }
        }
        if constexpr (kHasMinimum) {
            __m256 m[kHalves];
            TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) m[h] = load_f16(block.m + kLanes * h);
            TREADLE_UNROLL for (int n = 0; n < N; ++n) {
                const __m256 x_sum = _mm256_set1_ps(tile->scaled_sum[first + n]);
                TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
                    float* to = acc[token + n] + kLanes * h;
                    _mm256_store_ps(to, _mm256_fmadd_ps(m[h], x_sum, _mm256_load_ps(to)));
                }
            }
        }
    }
};

}  // namespace
}  // namespace treadle::avx2
