// The small operators between the products: norm, rotary embedding, gated activation, writes to the KV cache. Tails are
// scalar code with the same operations: the compiler fuses nothing, so lanes and scalars round alike.
#include "entries.h"
#include "vec.h"

namespace treadle::avx2 {
namespace {

inline __m128i to_f16(__m256 v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// The first n lanes of x, zero in the others.
inline __m256 load_first(const float* x, int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int32_t count = n < 0 ? 0 : n < kLanes ? static_cast<int32_t>(n) : kLanes;
    return _mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
}

inline __m256 silu_times(__m256 gate, __m256 up) {
    const __m256 e = exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), gate));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

inline __m256 gelu_times(__m256 gate, __m256 up) {
    const __m256 slope =
        _mm256_fmadd_ps(_mm256_mul_ps(gate, gate), _mm256_set1_ps(kGeluCubic), _mm256_set1_ps(kGeluLinear));
    const __m256 e = exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(gate, slope)));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

// out = activate(gate, up), the tail in a vector of its own.
template <class Activate>
inline void gated(const float* gate, const float* up, int64_t n, float* out, Activate activate) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        _mm256_storeu_ps(out + i, activate(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    }
    if (i == n) return;
    float tail[kLanes];
    _mm256_storeu_ps(tail, activate(load_first(gate + i, n - i), load_first(up + i, n - i)));
    __builtin_memcpy(out + i, tail, static_cast<size_t>(n - i) * sizeof(float));
}

inline void rotate(float* a, float* b, float cos, float sin) {
    const float x = *a, y = *b;
    *a = x * cos - y * sin;
    *b = x * sin + y * cos;
}

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + kLanes);
        low = _mm256_fmadd_ps(v0, v0, low);
        high = _mm256_fmadd_ps(v1, v1, high);
    }
    if (i < n) {
        const __m256 v0 = load_first(x + i, n - i);
        low = _mm256_fmadd_ps(v0, v0, low);
    }
    if (i + kLanes < n) {
        const __m256 v1 = load_first(x + i + kLanes, n - i - kLanes);
        high = _mm256_fmadd_ps(v1, v1, high);
    }
    const float mean = sum_lanes(_mm256_add_ps(low, high)) / static_cast<float>(n);
    const float inv = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    for (i = 0; i + kLanes <= n; i += kLanes) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inv));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)));
    }
    for (; i < n; ++i) out[i] = (x[i] * inv) * weight[i];
}

void rope_adjacent(float* head, const float* cos, const float* sin, int32_t half) {
    const __m256i pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    int32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        const __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos + i)), pairs);
        const __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin + i)), pairs);
        const __m256 v = _mm256_loadu_ps(head + 2 * i);
        const __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(v, 0xB1), s);  // (b, a) of each pair
        _mm256_storeu_ps(head + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, c), crossed));
    }
    for (; i < half; ++i) rotate(head + 2 * i, head + 2 * i + 1, cos[i], sin[i]);
}

void rope_halves(float* head, const float* cos, const float* sin, int32_t half) {
    int32_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        const __m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(head + half + i);
        _mm256_storeu_ps(head + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(head + half + i, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
    }
    for (; i < half; ++i) rotate(head + i, head + half + i, cos[i], sin[i]);
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
    gated(gate, up, n, out, [](__m256 g, __m256 u) { return silu_times(g, u); });
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
    gated(gate, up, n, out, [](__m256 g, __m256 u) { return gelu_times(g, u); });
}

void soft_cap(float* x, int64_t n, SoftCap cap) {
    gated(x, x, n, x, [cap](__m256 value, __m256) { return soft_capped(value, cap); });
}

void store_k(const float* k, int32_t head_dim, int32_t position, uint16_t* k_block) {
    uint16_t* column = k_block + position;
    for (int32_t d = 0; d < head_dim; d += kLanes) {
        uint16_t half[kLanes];
        _mm_storeu_si128(reinterpret_cast<__m128i*>(half), to_f16(_mm256_loadu_ps(k + d)));
        for (int32_t i = 0; i < kLanes; ++i) column[kKvBlockTokens * (d + i)] = half[i];
    }
}

void store_v(const float* v, int32_t head_dim, int32_t position, uint16_t* v_block) {
    uint16_t* row = v_block + int64_t{position} * head_dim;
    for (int32_t d = 0; d < head_dim; d += kLanes) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(row + d), to_f16(_mm256_loadu_ps(v + d)));
    }
}

}  // namespace treadle::avx2
