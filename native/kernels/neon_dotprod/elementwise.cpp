// The small operators between the products: norm, rotary embedding, gated activation, writes to the KV cache. Tails are
// scalar code with the same operations: the compiler fuses nothing, so lanes and scalars round alike.
#include "entries.h"
#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

inline float32x4_t silu_times(float32x4_t gate, float32x4_t up) {
    const float32x4_t e = exp_ps(vnegq_f32(gate));
    return vmulq_f32(vdivq_f32(gate, vaddq_f32(vdupq_n_f32(1.0f), e)), up);
}

inline float32x4_t gelu_times(float32x4_t gate, float32x4_t up) {
    const float32x4_t slope = vfmaq_f32(vdupq_n_f32(kGeluLinear), vmulq_f32(gate, gate), vdupq_n_f32(kGeluCubic));
    const float32x4_t e = exp_ps(vnegq_f32(vmulq_f32(gate, slope)));
    return vmulq_f32(vdivq_f32(gate, vaddq_f32(vdupq_n_f32(1.0f), e)), up);
}

// out = activate(gate, up), the tail in a vector of its own.
template <class Activate>
inline void gated(const float* gate, const float* up, int64_t n, float* out, Activate activate) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) vst1q_f32(out + i, activate(vld1q_f32(gate + i), vld1q_f32(up + i)));
    if (i == n) return;
    float tail[kLanes];
    vst1q_f32(tail, activate(load_first(gate + i, n - i), load_first(up + i, n - i)));
    __builtin_memcpy(out + i, tail, static_cast<size_t>(n - i) * sizeof(float));
}

inline void rotate(float* a, float* b, float cos, float sin) {
    const float x = *a, y = *b;
    *a = x * cos - y * sin;
    *b = x * sin + y * cos;
}

// rotate for four pairs.
inline void rotate(float32x4_t* a, float32x4_t* b, float32x4_t cos, float32x4_t sin) {
    const float32x4_t x = *a, y = *b;
    *a = vsubq_f32(vmulq_f32(x, cos), vmulq_f32(y, sin));
    *b = vaddq_f32(vmulq_f32(x, sin), vmulq_f32(y, cos));
}

// Eight values as f16, rounded to nearest even.
inline uint16x8_t load_as_f16(const float* x) {
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(x)), vld1q_f32(x + kLanes)));
}

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    float32x4_t sum[4] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        TREADLE_UNROLL for (int v = 0; v < 4; ++v) {
            const float32x4_t value = vld1q_f32(x + i + kLanes * v);
            sum[v] = vfmaq_f32(sum[v], value, value);
        }
    }
    TREADLE_UNROLL for (int v = 0; v < 4; ++v) {
        const int64_t first = i + kLanes * v;
        if (first >= n) break;
        const float32x4_t value = load_first(x + first, n - first);
        sum[v] = vfmaq_f32(sum[v], value, value);
    }
    const float32x4_t halves = vaddq_f32(vaddq_f32(sum[0], sum[2]), vaddq_f32(sum[1], sum[3]));
    const float mean = sum_lanes(halves) / static_cast<float>(n);
    const float inv = 1.0f / vget_lane_f32(vsqrt_f32(vdup_n_f32(mean + eps)), 0);
    for (i = 0; i + kLanes <= n; i += kLanes) {
        vst1q_f32(out + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), inv), vld1q_f32(weight + i)));
    }
    for (; i < n; ++i) out[i] = (x[i] * inv) * weight[i];
}

void rope_adjacent(float* head, const float* cos, const float* sin, int32_t half) {
    int32_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        float32x4x2_t pairs = vld2q_f32(head + 2 * i);
        rotate(&pairs.val[0], &pairs.val[1], vld1q_f32(cos + i), vld1q_f32(sin + i));
        vst2q_f32(head + 2 * i, pairs);
    }
    for (; i < half; ++i) rotate(head + 2 * i, head + 2 * i + 1, cos[i], sin[i]);
}

void rope_halves(float* head, const float* cos, const float* sin, int32_t half) {
    int32_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        float32x4_t a = vld1q_f32(head + i), b = vld1q_f32(head + half + i);
        rotate(&a, &b, vld1q_f32(cos + i), vld1q_f32(sin + i));
        vst1q_f32(head + i, a);
        vst1q_f32(head + half + i, b);
    }
    for (; i < half; ++i) rotate(head + i, head + half + i, cos[i], sin[i]);
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
    gated(gate, up, n, out, [](float32x4_t g, float32x4_t u) { return silu_times(g, u); });
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
    gated(gate, up, n, out, [](float32x4_t g, float32x4_t u) { return gelu_times(g, u); });
}

void soft_cap(float* x, int64_t n, SoftCap cap) {
    gated(x, x, n, x, [cap](float32x4_t value, float32x4_t) { return soft_capped(value, cap); });
}

void store_k(const float* k, int32_t head_dim, int32_t position, uint16_t* k_block) {
    uint16_t* column = k_block + position;
    for (int32_t d = 0; d < head_dim; d += 8) {
        uint16_t half[8];
        vst1q_u16(half, load_as_f16(k + d));
        TREADLE_UNROLL for (int32_t i = 0; i < 8; ++i) column[kKvBlockTokens * (d + i)] = half[i];
    }
}

void store_v(const float* v, int32_t head_dim, int32_t position, uint16_t* v_block) {
    uint16_t* row = v_block + int64_t{position} * head_dim;
    for (int32_t d = 0; d < head_dim; d += 8) vst1q_u16(row + d, load_as_f16(v + d));
}

}  // namespace treadle::neon_dotprod
