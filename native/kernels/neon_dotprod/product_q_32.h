// The product of the formats with blocks of 32 columns, for any way to sum up dot products (see SdotSums).
#pragma once

#include "dot.h"

namespace treadle::neon_dotprod {
namespace {

// What differs between the formats: the dot product of the Q row quads from `quad` on, and the zero point that it
// leaves to subtract (0 for none) or the minimum.
template <class PanelType, int kZero>
struct FourBit {
    using Panel = PanelType;
    static constexpr int kZeroPoint = kZero;
    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, const int8_t* x, Sums& sums) {
        dot_four_bit<Sums, Q>(block.q + 16 * quad, x, sums);
    }
};

template <class PanelType, int kZero>
struct FiveBit {
    using Panel = PanelType;
    static constexpr int kZeroPoint = kZero;
    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, const int8_t* x, Sums& sums) {
        dot_five_bit<Sums, Q>(block.q + 16 * quad, block.h + 16 * quad, x, sums);
    }
};

using Q4_0 = FourBit<PanelQ4_0, 8>;
using Q4_1 = FourBit<PanelQ4_1, 0>;
using Q5_0 = FiveBit<PanelQ5_0, 16>;
using Q5_1 = FiveBit<PanelQ5_1, 0>;

struct Q8_0 {
    using Panel = PanelQ8_0;
    static constexpr int kZeroPoint = 0;  // the dot product is of q - 128 already
    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, const int8_t* x, Sums& sums) {
        dot_eight_bit<Sums, Q>(block.q + 16 * quad, x, sums);
    }
};

// Four-bit codes of signed values.
template <class PanelType, const int8_t (&kValues)[16]>
struct Coded {
    using Panel = PanelType;
    static constexpr int kZeroPoint = 0;
    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, const int8_t* x, Sums& sums) {
        dot_coded<Sums, Q>(block.q + 16 * quad, vld1q_s8(kValues), x, sums);
    }
};

using IQ4_NL = Coded<PanelIQ4_NL, kIq4Values>;
using MXFP4 = Coded<PanelMXFP4, kMxfp4Values>;

template <class Panel>
TREADLE_INLINE float32x4_t factors(const Panel& block, int quad) {
    return load_f16(block.d + kLanes * quad);
}
TREADLE_INLINE float32x4_t factors(const PanelMXFP4& block, int quad) {
    return load_half_e8m0(block.e + kLanes * quad);
}

template <template <int, int> class Sums, class Format>
struct Product32 {
    using Panel = typename Format::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.m; };

    // acc[quad][t] += Q row quads of one block, from `quad` on; `first` is the index of token 0 in the tile's per-block
    // arrays.
    template <int T, int Q>
    static TREADLE_INLINE void add_quads(const Panel& block, int quad, const ActTile* tile, int64_t first,
                                         float32x4_t (*acc)[T]) {
        Sums<T, Q> sums;
        sums.clear();
        Format::template dot<Q>(block, quad, tile->q + 32 * first, sums);
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            const float32x4_t d = factors(block, quad + q);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                int32x4_t s = sums.of(q, t);
                if constexpr (Format::kZeroPoint > 0) {
                    s = vaddq_s32(s, vdupq_n_s32(tile->zero32[first + t] / (128 / Format::kZeroPoint)));
                }
                const float32x4_t scale = vmulq_n_f32(d, tile->scale[first + t]);
                acc[q][t] = vfmaq_f32(acc[q][t], vcvtq_f32_s32(s), scale);
            }
            if constexpr (kHasMinimum) {
                const float32x4_t m = load_f16(block.m + kLanes * (quad + q));
                TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[q][t] =
                    vfmaq_n_f32(acc[q][t], m, tile->scaled_sum[first + t]);
            }
        }
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const Panel* block = static_cast<const Panel*>(panel);
        constexpr int Q = kPassQuads<T>;
        float32x4_t acc[kQuads][T] = {};
        for (int64_t b = 0; b < num_columns / 32; ++b) {
            prefetch<sizeof(Panel)>(block + b + kPrefetchDistance / sizeof(Panel));
            for (int quad = 0; quad < kQuads; quad += Q) {
                hide(quad);
                add_quads<T, Q>(block[b], quad, tile, T * b, acc + quad);
            }
        }
        store_tile<T>(acc, out);
    }
};

}  // namespace
}  // namespace treadle::neon_dotprod
