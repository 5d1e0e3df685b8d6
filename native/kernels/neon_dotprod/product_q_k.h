// The product of the formats with blocks of 256 columns, for any way to sum up dot products (see SdotSums).
#pragma once

#include "dot.h"

namespace treadle::neon_dotprod {
namespace {

// Four bytes, one per row, as 32-bit lanes.
TREADLE_INLINE uint32x4_t widen_bytes(const uint8_t* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}

// Walks the sub-blocks of a panel; Format::add<Sums, T, Q> adds Q row quads of sub-block j of a block, the i-th of the
// row, to acc.
template <template <int, int> class Sums, class Format>
struct ProductK {
    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const auto* block = static_cast<const typename Format::Panel*>(panel);
        constexpr int kSubBlockBytes = sizeof(*block) / 8;
        constexpr int Q = kPassQuads<T>;
        float32x4_t acc[kQuads][T] = {};
        for (int64_t i = 0; i < num_columns / 32; ++i) {
            prefetch<kSubBlockBytes>(static_cast<const char*>(panel) + kPrefetchDistance + kSubBlockBytes * i);
            for (int quad = 0; quad < kQuads; quad += Q) {
                hide(quad);
                Format::template add<Sums, T, Q>(block[i / 8], quad, static_cast<int>(i % 8), i, tile, acc + quad);
            }
        }
        store_tile<T>(acc, out);
    }
};

template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr bool kFiveBits = requires(Panel p) { p.h; };

    static TREADLE_INLINE float32x4_t scale(const Panel& block, int quad, int j) {
        const uint32x4_t bits = vandq_u32(widen_bytes(block.s[j] + kLanes * quad), vdupq_n_u32(63));
        return vmulq_f32(load_f16(block.d + kLanes * quad), vcvtq_f32_u32(bits));
    }

    static TREADLE_INLINE float32x4_t min(const Panel& block, int quad, int j) {
        const uint32x4_t nibbles = vshlq_u32(widen_bytes(block.m[j / 2] + kLanes * quad), vdupq_n_s32(-4 * (j % 2)));
        const uint32x4_t high = vshrq_n_u32(widen_bytes(block.s[j] + kLanes * quad), 6);
        const uint32x4_t bits = vorrq_u32(vandq_u32(nibbles, vdupq_n_u32(15)), vshlq_n_u32(high, 4));
        return vmulq_f32(load_f16(block.dmin + kLanes * quad), vcvtq_f32_u32(bits));
    }

    template <template <int, int> class Sums, int T, int Q>
    static TREADLE_INLINE void add(const Panel& block, int quad, int j, int64_t i, const ActTile* tile,
                                   float32x4_t (*acc)[T]) {
        Sums<T, Q> sums;
        sums.clear();
        const int8_t* x = tile->q + 32 * T * i;
        if constexpr (kFiveBits)
            dot_five_bit<Sums<T, Q>, Q>(block.q[j] + 16 * quad, block.h[j] + 16 * quad, x, sums);
        else
            dot_four_bit<Sums<T, Q>, Q>(block.q[j] + 16 * quad, x, sums);
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            const float32x4_t row_scale = scale(block, quad + q, j), row_min = min(block, quad + q, j);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(sums.of(q, t)), row_scale);
                acc[q][t] = vfmaq_n_f32(acc[q][t], scaled, tile->scale[T * i + t]);
                acc[q][t] = vfmsq_n_f32(acc[q][t], row_min, tile->scaled_sum[T * i + t]);
            }
        }
    }
};

struct Q6K {
    using Panel = PanelQ6_K;

    // g = f(sum of half v) * (d * scale of half v), added to g for the second half.
    template <int v, template <int, int> class Sums, int T, int Q>
    static TREADLE_INLINE void add_half(const Panel& block, int quad, int j, int64_t i, const ActTile* tile,
                                        float32x4_t (*g)[T]) {
        Sums<T, Q> sums;
        sums.clear();
        dot_six_bit_half<Sums<T, Q>, Q, v>(block.q[j] + 16 * quad, block.h[j][v] + 16 * quad, tile->q + 32 * T * i,
                                           sums);
        const int32_t* zero = tile->zero16 + T * (2 * i + v);
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            // Eight bytes: the scales of both halves, a pair per row.
            const int16x8_t pairs = vmovl_s8(vld1_s8(block.s[j][kLanes * (quad + q)]));
            const int16x8_t picked = v == 0 ? vuzp1q_s16(pairs, pairs) : vuzp2q_s16(pairs, pairs);
            const float32x4_t row_scale =
                vmulq_f32(load_f16(block.d + kLanes * (quad + q)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(picked))));
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                const float32x4_t s = vcvtq_f32_s32(vaddq_s32(sums.of(q, t), vdupq_n_s32(zero[t])));
                g[q][t] = v == 0 ? vmulq_f32(s, row_scale) : vfmaq_f32(g[q][t], s, row_scale);
            }
        }
    }

    template <template <int, int> class Sums, int T, int Q>
    static TREADLE_INLINE void add(const Panel& block, int quad, int j, int64_t i, const ActTile* tile,
                                   float32x4_t (*acc)[T]) {
        float32x4_t g[Q][T];
        add_half<0, Sums, T, Q>(block, quad, j, i, tile, g);
        add_half<1, Sums, T, Q>(block, quad, j, i, tile, g);
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[q][t] =
                vfmaq_n_f32(acc[q][t], g[q][t], tile->scale[T * i + t]);
        }
    }
};

}  // namespace
}  // namespace treadle::neon_dotprod
