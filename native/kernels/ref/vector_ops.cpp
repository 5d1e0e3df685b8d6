// Norm, rotary embedding, gated activation and the KV stores.
#include <cmath>

#include "half.h"
#include "ref.h"
#include "soft_cap.h"
#include "sum_halves.h"

namespace treadle::ref {

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    float lane[16] = {};
    for (int64_t i = 0; i < n; ++i) lane[i % 16] = std::fma(x[i], x[i], lane[i % 16]);
    const float inv = 1.0f / std::sqrt(sum_halves(lane, 16) / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] * inv) * weight[i];
}

void rope_adjacent(float* head, const float* cos, const float* sin, int32_t half) {
    for (int32_t i = 0; i < half; ++i) {
        const float a = head[2 * i];
        const float b = head[2 * i + 1];
        head[2 * i] = a * cos[i] - b * sin[i];
        head[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}

void rope_halves(float* head, const float* cos, const float* sin, int32_t half) {
    for (int32_t i = 0; i < half; ++i) {
        const float a = head[i];
        const float b = head[i + half];
        head[i] = a * cos[i] - b * sin[i];
        head[i + half] = a * sin[i] + b * cos[i];
    }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) {
        const float z = gate[i] * std::fma(gate[i] * gate[i], kGeluCubic, kGeluLinear);
        out[i] = gate[i] / (1.0f + exp_f32(-z)) * up[i];
    }
}

void soft_cap(float* x, int64_t n, SoftCap cap) {
    for (int64_t i = 0; i < n; ++i) x[i] = soft_capped(x[i], cap);
}

void store_k(const float* k, int32_t head_dim, int32_t position, uint16_t* k_block) {
    for (int32_t d = 0; d < head_dim; ++d) k_block[d * kKvBlockTokens + position] = f16_of_float(k[d]);
}

void store_v(const float* v, int32_t head_dim, int32_t position, uint16_t* v_block) {
    for (int32_t d = 0; d < head_dim; ++d) v_block[position * head_dim + d] = f16_of_float(v[d]);
}

}  // namespace treadle::ref
