// Small vector pieces the AArch64 kernels share, those of neon_i8mm included: whatever has its instructions has these.
// Internal linkage, so no other instruction set's object can pick up a copy compiled with these flags.
#pragma once

#include <arm_neon.h>

#include "treadle/kernels.h"

// Arrays of vectors stay in registers only when the loops over them are unrolled.
#define TREADLE_UNROLL _Pragma("GCC unroll 8")

// For what works on sums held in registers: a call would preserve none of them.
#define TREADLE_INLINE inline __attribute__((always_inline))

namespace treadle::neon_dotprod {
namespace {

constexpr int kLanes = 4;
constexpr int kQuads = kPanelRows / kLanes;  // a panel's 16 rows are four vectors of four

inline float32x4_t load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

// Four bytes, one per row, as 32-bit lanes.
inline uint32x4_t widen_bytes(const uint8_t* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}

// 2^(e - 128) of four bytes e; the two smallest powers are subnormal.
inline float32x4_t load_half_e8m0(const uint8_t* p) {
    const int32x4_t e = vreinterpretq_s32_u32(widen_bytes(p)), one = vdupq_n_s32(1);
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, one), 23);
    const int32x4_t subnormal = vshlq_n_s32(vminq_s32(vaddq_s32(e, one), vdupq_n_s32(2)), 21);
    return vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal));
}

// Eight f16 as two vectors.
inline void load_f16_pair(const uint16_t* p, float32x4_t* out) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
    out[0] = vcvt_f32_f16(vget_low_f16(halves));
    out[1] = vcvt_high_f32_f16(halves);
}

// The first n lanes of x, zero in the others.
inline float32x4_t load_first(const float* x, int64_t n) {
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < n && i < kLanes; ++i) lanes[i] = x[i];
    return vld1q_f32(lanes);
}

// Adds halves, 4 -> 2 -> 1 lanes.
inline float sum_lanes(float32x4_t v) {
    const float32x2_t v2 = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(v2, 0) + vget_lane_f32(v2, 1);
}

// Writes the 16 rows of T tokens.
template <int T>
inline void store_tile(const float32x4_t (*acc)[T], float* out) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) {
        TREADLE_UNROLL for (int q = 0; q < kQuads; ++q) vst1q_f32(out + kPanelRows * t + kLanes * q, acc[q][t]);
    }
}

// How far ahead of the dot products weights are requested: more than a K-quant panel block. Not measured:
// the machine these kernels were written on only emulates AArch64.
constexpr int kPrefetchDistance = 4096;

// Requests kBytes, rounded up to whole lines. Addresses past the end of an allocation are fine: prefetches never fault.
template <int kBytes>
inline void prefetch(const void* p) {
    const char* c = static_cast<const char*>(p);
    _Pragma("GCC unroll 16") for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(c + i);
}

// Keeps the compiler from unrolling the loop over passes: with two passes mixed, sums would not fit the registers.
inline void hide(int& counter) { __asm__ volatile("" : "+r"(counter)); }

// Calls Kernel::run<T> for the tile's number of tokens, so that per-token accumulators are registers.
template <class Kernel, class Out>
inline void run_tile(const void* panel, int64_t num_columns, const ActTile* tile, Out out) {
    switch (tile->num_tokens) {
        case 1:
            return Kernel::template run<1>(panel, num_columns, tile, out);
        case 2:
            return Kernel::template run<2>(panel, num_columns, tile, out);
        case 3:
            return Kernel::template run<3>(panel, num_columns, tile, out);
        case 4:
            return Kernel::template run<4>(panel, num_columns, tile, out);
        case 5:
            return Kernel::template run<5>(panel, num_columns, tile, out);
        case 6:
            return Kernel::template run<6>(panel, num_columns, tile, out);
        case 7:
            return Kernel::template run<7>(panel, num_columns, tile, out);
        default:
            return Kernel::template run<8>(panel, num_columns, tile, out);
    }
}

// exp(x) as treadle/kernels.h writes it down.
inline float32x4_t exp_ps(float32x4_t x) {
    x = vmaxq_f32(vdupq_n_f32(kExpLowest), vminq_f32(vdupq_n_f32(kExpHighest), x));
    const float32x4_t n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(kLog2E)));
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(kLn2High));
    r = vfmsq_f32(r, n, vdupq_n_f32(kLn2Low));
    float32x4_t p = vdupq_n_f32(kExpPoly[0]);
    TREADLE_UNROLL for (int i = 1; i < 5; ++i) p = vfmaq_f32(vdupq_n_f32(kExpPoly[i]), p, r);
    p = vfmaq_f32(r, p, vmulq_f32(r, r));
    p = vaddq_f32(p, vdupq_n_f32(1.0f));
    // 2^n in two factors: n reaches from -159 to 130, a float's exponent from -126 to 127. The first product is exact.
    const int32x4_t whole = vcvtq_s32_f32(n);
    const int32x4_t first = vshrq_n_s32(whole, 1);
    const int32x4_t bias = vdupq_n_s32(127);
    const int32x4_t power1 = vshlq_n_s32(vaddq_s32(first, bias), 23);
    const int32x4_t power2 = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, first), bias), 23);
    return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(power1)), vreinterpretq_f32_s32(power2));
}

inline float32x4_t soft_capped(float32x4_t x, SoftCap cap) {
    const float32x4_t y = vmulq_n_f32(x, cap.inverse), one = vdupq_n_f32(1.0f);
    const float32x4_t share = vdivq_f32(vdupq_n_f32(2.0f), vaddq_f32(exp_ps(vaddq_f32(y, y)), one));
    return vmulq_n_f32(vsubq_f32(one, share), cap.cap);
}

// All bits set where a row that sees first .. limit - 1 sees position 4 * n + lane of a block.
inline uint32x4_t seen_of(int32_t first, int32_t limit, int n) {
    const int32_t lanes[kLanes] = {0, 1, 2, 3};
    const int32x4_t lane = vld1q_s32(lanes);
    return vandq_u32(vcgtq_s32(vdupq_n_s32(limit - kLanes * n), lane),
                     vcleq_s32(vdupq_n_s32(first - kLanes * n), lane));
}

}  // namespace
}  // namespace treadle::neon_dotprod
