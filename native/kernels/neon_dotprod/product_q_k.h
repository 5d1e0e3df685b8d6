// The product of the formats with blocks of 256 columns, for any way to sum up dot products (see SdotSums).
#pragma once

#include "dot.h"

namespace treadle::neon_dotprod {
namespace {

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

// Sub-blocks that have one scale: Format::dot sums up the products of the Q row quads from `quad` on, Format::scale
// gives the factors of a quad, Format::min what a format with minimums takes off.
template <class Format>
struct AddWhole {
    using Panel = typename Format::Panel;

    template <template <int, int> class Sums, int T, int Q>
    static TREADLE_INLINE void add(const Panel& block, int quad, int j, int64_t i, const ActTile* tile,
                                   float32x4_t (*acc)[T]) {
        Sums<T, Q> sums;
        sums.clear();
        Format::template dot<Q>(block, quad, j, tile->q + 32 * T * i, sums);
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            const float32x4_t scale = Format::scale(block, quad + q, j);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                int32x4_t s = sums.of(q, t);
                if constexpr (Format::kZeroPoint > 0) {
                    s = vaddq_s32(s, vdupq_n_s32(tile->zero32[T * i + t] / (128 / Format::kZeroPoint)));
                }
                acc[q][t] = vfmaq_n_f32(acc[q][t], vmulq_f32(vcvtq_f32_s32(s), scale), tile->scale[T * i + t]);
            }
            if constexpr (requires { block.dmin; }) {
                const float32x4_t min = Format::min(block, quad + q, j);
                TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[q][t] =
                    vfmsq_n_f32(acc[q][t], min, tile->scaled_sum[T * i + t]);
            }
        }
    }
};

template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr int kZeroPoint = 0;

    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, int j, const int8_t* x, Sums& sums) {
        if constexpr (requires { block.h; })
            dot_five_bit<Sums, Q>(block.q[j] + 16 * quad, block.h[j] + 16 * quad, x, sums);
        else
            dot_four_bit<Sums, Q>(block.q[j] + 16 * quad, x, sums);
    }

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
};

struct IQ4_XS {
    using Panel = PanelIQ4_XS;
    static constexpr int kZeroPoint = 0;  // the values are signed

    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, int j, const int8_t* x, Sums& sums) {
        dot_coded<Sums, Q>(block.q[j] + 16 * quad, vld1q_s8(kIq4Values), x, sums);
    }

    static TREADLE_INLINE float32x4_t scale(const Panel& block, int quad, int j) {
        int32_t bytes;
        __builtin_memcpy(&bytes, block.s[j] + kLanes * quad, sizeof bytes);
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)));
        return vmulq_f32(load_f16(block.d + kLanes * quad), vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
    }
};

struct TQ2_0 {
    using Panel = PanelTQ2_0;
    static constexpr int kZeroPoint = 1;

    template <int g>
    static TREADLE_INLINE int8x16_t weights(const Panel& block, int quad, int j) {
        return two_bit_group<g>(block.q[j][0] + 16 * quad);
    }

    template <int Q, class Sums>
    static TREADLE_INLINE void dot(const Panel& block, int quad, int j, const int8_t* x, Sums& sums) {
        dot_half<TQ2_0, Sums, Q, 0>(block, quad, j, x, sums);
        dot_half<TQ2_0, Sums, Q, 1>(block, quad, j, x, sums);
    }

    static TREADLE_INLINE float32x4_t scale(const Panel& block, int quad, int) {
        return load_f16(block.d + kLanes * quad);
    }
};

// Sub-blocks whose halves have a scale each, and a minimum each if the format has them.
template <class Format>
struct AddHalves {
    using Panel = typename Format::Panel;

    // g = f(sum of half v) * (scale of half v), added to g for the second half.
    template <int v, template <int, int> class Sums, int T, int Q>
    static TREADLE_INLINE void add_half(const Panel& block, int quad, int j, int64_t i, const ActTile* tile,
                                        float32x4_t (*g)[T]) {
        Sums<T, Q> sums;
        sums.clear();
        dot_half<Format, Sums<T, Q>, Q, v>(block, quad, j, tile->q + 32 * T * i, sums);
        const int32_t* zero = tile->zero16 + T * (2 * i + v);
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            const float32x4_t scale =
                vmulq_f32(load_f16(block.d + kLanes * (quad + q)), Format::template scale<v>(block, quad + q, j));
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                int32x4_t sum = sums.of(q, t);
                if constexpr (Format::kZeroPoint > 0) {
                    sum = vaddq_s32(sum, vdupq_n_s32(zero[t] / (32 / Format::kZeroPoint)));
                }
                const float32x4_t s = vcvtq_f32_s32(sum);
                g[q][t] = v == 0 ? vmulq_f32(s, scale) : vfmaq_f32(g[q][t], s, scale);
            }
        }
    }

    template <int v, int T, int Q>
    static TREADLE_INLINE void add_minimums(const Panel& block, int quad, int j, const int32_t* zero,
                                            float32x4_t (*g)[T]) {
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            const float32x4_t min = Format::template min<v>(block, quad + q, j);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) g[q][t] =
                vfmaq_n_f32(g[q][t], min, static_cast<float>(zero[T * v + t]));
        }
    }

    template <template <int, int> class Sums, int T, int Q>
    static TREADLE_INLINE void add(const Panel& block, int quad, int j, int64_t i, const ActTile* tile,
                                   float32x4_t (*acc)[T]) {
        float32x4_t g[Q][T];
        add_half<0, Sums, T, Q>(block, quad, j, i, tile, g);
        add_half<1, Sums, T, Q>(block, quad, j, i, tile, g);
        if constexpr (requires { block.dmin; }) {
            add_minimums<0, T, Q>(block, quad, j, tile->zero16 + 2 * T * i, g);
            add_minimums<1, T, Q>(block, quad, j, tile->zero16 + 2 * T * i, g);
        }
        TREADLE_UNROLL for (int q = 0; q < Q; ++q) {
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[q][t] =
                vfmaq_n_f32(acc[q][t], g[q][t], tile->scale[T * i + t]);
        }
    }
};

// Of four pairs of bytes, one per row, byte v.
template <int v>
TREADLE_INLINE float32x4_t signed_half(const int8_t (*pairs)[2]) {
    const int16x8_t wide = vmovl_s8(vld1_s8(pairs[0]));
    const int16x8_t picked = v == 0 ? vuzp1q_s16(wide, wide) : vuzp2q_s16(wide, wide);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(picked)));
}

struct Q6K {
    using Panel = PanelQ6_K;
    static constexpr int kZeroPoint = 32;

    template <int g>
    static TREADLE_INLINE int8x16_t weights(const Panel& block, int quad, int j) {
        const uint8x16_t v = vld1q_u8(block.q[j] + 64 * (g % 4) + 16 * quad);
        const uint8x16_t high = move_bit<2 * (g % 4), 4>(vld1q_u8(block.h[j][g / 4] + 16 * quad));
        return merge(48, high, g < 4 ? low_nibbles(v) : high_nibbles(v));
    }

    template <int v>
    static TREADLE_INLINE float32x4_t scale(const Panel& block, int quad, int j) {
        return signed_half<v>(block.s[j] + kLanes * quad);
    }
};

struct Q3K {
    using Panel = PanelQ3_K;
    static constexpr int kZeroPoint = 4;

    template <int g>
    static TREADLE_INLINE int8x16_t weights(const Panel& block, int quad, int j) {
        const uint8x16_t third = move_bit<g, 2>(vld1q_u8(block.h[j] + 16 * quad));
        return merge(4, third, two_bit_group<g>(block.q[j][0] + 16 * quad));
    }

    template <int v>
    static TREADLE_INLINE float32x4_t scale(const Panel& block, int quad, int j) {
        return signed_half<v>(block.s[j] + kLanes * quad);
    }
};

struct Q2K {
    using Panel = PanelQ2_K;
    static constexpr int kZeroPoint = 0;

    template <int g>
    static TREADLE_INLINE int8x16_t weights(const Panel& block, int quad, int j) {
        return two_bit_group<g>(block.q[j][0] + 16 * quad);
    }

    template <int v>
    static TREADLE_INLINE float32x4_t scale(const Panel& block, int quad, int j) {
        return nibble<2 * v>(block, quad, j);
    }

    template <int v>
    static TREADLE_INLINE float32x4_t min(const Panel& block, int quad, int j) {
        const float32x4_t fraction = vmulq_n_f32(nibble<2 * v + 1>(block, quad, j), 1.0f / 32);
        return vmulq_f32(load_f16(block.dmin + kLanes * quad), fraction);
    }

 private:
    // The n-th nibble of each row's pair of bytes.
    template <int n>
    static TREADLE_INLINE float32x4_t nibble(const Panel& block, int quad, int j) {
        const uint16x4_t pairs = vreinterpret_u16_u8(vld1_u8(block.s[j][kLanes * quad]));
        const uint32x4_t bits = vshlq_u32(vmovl_u16(pairs), vdupq_n_s32(-4 * n));
        return vcvtq_f32_u32(vandq_u32(bits, vdupq_n_u32(15)));
    }
};

}  // namespace
}  // namespace treadle::neon_dotprod
