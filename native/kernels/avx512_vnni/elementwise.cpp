// The small operators between the products: norm, rotary embedding, gated activation, writes to the KV cache.
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

// The first n of 16 lanes, all of them for n >= 16.
inline __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << n) - 1); }

inline __m256i to_f16(__m512 v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    __m512 acc = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(first_lanes(n - i), x + i);
        acc = _mm512_fmadd_ps(v, v, acc);
    }
    const float mean = sum_lanes(acc) / static_cast<float>(n);
    const float inv = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = first_lanes(n - i);
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(inv));
        _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(lanes, weight + i)));
    }
}

void rope_adjacent(float* head, const float* cos, const float* sin, int32_t half) {
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (int32_t i = 0; i < half; i += 8) {
        const __mmask16 lanes = first_lanes(2 * int64_t{half - i});
        const __mmask16 entries = first_lanes(half - i) & 0xFF;
        const __m512 c = _mm512_permutexvar_ps(pairs, _mm512_maskz_loadu_ps(entries, cos + i));
        const __m512 s = _mm512_permutexvar_ps(pairs, _mm512_maskz_loadu_ps(entries, sin + i));
        const __m512 v = _mm512_maskz_loadu_ps(lanes, head + 2 * i);
        const __m512 straight = _mm512_mul_ps(v, c);
        const __m512 crossed = _mm512_mul_ps(_mm512_permute_ps(v, 0xB1), s);  // (b, a) of each pair
        const __m512 turned = _mm512_mask_sub_ps(_mm512_add_ps(crossed, straight), 0x5555, straight, crossed);
        _mm512_mask_storeu_ps(head + 2 * i, lanes, turned);
    }
}

void rope_halves(float* head, const float* cos, const float* sin, int32_t half) {
    for (int32_t i = 0; i < half; i += 16) {
        const __mmask16 lanes = first_lanes(half - i);
        const __m512 c = _mm512_maskz_loadu_ps(lanes, cos + i), s = _mm512_maskz_loadu_ps(lanes, sin + i);
        const __m512 a = _mm512_maskz_loadu_ps(lanes, head + i), b = _mm512_maskz_loadu_ps(lanes, head + half + i);
        _mm512_mask_storeu_ps(head + i, lanes, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(head + half + i, lanes, _mm512_add_ps(_mm512_mul_ps(a, s), _mm512_mul_ps(b, c)));
    }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = first_lanes(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + i);
        const __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), g));
        const __m512 activated = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(activated, _mm512_maskz_loadu_ps(lanes, up + i)));
    }
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = first_lanes(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(lanes, gate + i);
        const __m512 slope =
            _mm512_fmadd_ps(_mm512_mul_ps(g, g), _mm512_set1_ps(kGeluCubic), _mm512_set1_ps(kGeluLinear));
        const __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(g, slope)));
        const __m512 activated = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(activated, _mm512_maskz_loadu_ps(lanes, up + i)));
    }
}

void soft_cap(float* x, int64_t n, SoftCap cap) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = first_lanes(n - i);
        _mm512_mask_storeu_ps(x + i, lanes, soft_capped(_mm512_maskz_loadu_ps(lanes, x + i), cap));
    }
}

void store_k(const float* k, int32_t head_dim, int32_t position, uint16_t* k_block) {
    uint16_t* column = k_block + position;
    for (int32_t d = 0; d < head_dim; d += 16) {
        const __mmask16 lanes = first_lanes(head_dim - d);
        uint16_t half[16];
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(half), to_f16(_mm512_maskz_loadu_ps(lanes, k + d)));
        const int32_t count = head_dim - d < 16 ? head_dim - d : 16;
        for (int32_t i = 0; i < count; ++i) column[kKvBlockTokens * (d + i)] = half[i];
    }
}

void store_v(const float* v, int32_t head_dim, int32_t position, uint16_t* v_block) {
    uint16_t* row = v_block + int64_t{position} * head_dim;
    for (int32_t d = 0; d < head_dim; d += 16) {
        const __mmask16 lanes = first_lanes(head_dim - d);
        _mm256_mask_storeu_epi16(row + d, lanes, to_f16(_mm512_maskz_loadu_ps(lanes, v + d)));
    }
}

}  // namespace treadle::avx512_vnni
