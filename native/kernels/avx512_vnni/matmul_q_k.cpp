// Products of the formats with blocks of 256 columns: Q4_K, Q5_K, Q6_K.
#include "entries.h"
#include "unpack.h"

namespace treadle::avx512_vnni {
namespace {

template <int T>
inline void clear(__m512i* s) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm512_setzero_si512();
}

// 16 bytes, one per row, as 32-bit lanes.
inline __m512i load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// a[t] = fma(float(s[t]), factor, a[t])
template <int T>
inline void add_scaled(const __m512i* s, __m512 factor, __m512* a) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), factor, a[t]);
}

// Walks the blocks of a panel; Block::add<T> adds one.
template <class Block>
struct Product {
    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const auto* block = static_cast<const typename Block::Panel*>(panel);
        __m512 acc[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            __m512 a[T];
            TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] = _mm512_setzero_ps();
            Block::template dot<T>(block[b], b, tile, a);
            const float* scale = tile->scale + T * b;
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_fmadd_ps(a[t], _mm512_set1_ps(scale[t]), acc[t]);
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + kPanelRows * t, acc[t]);
    }
};

// Q4_K and Q5_K: scales and minimums have six bits, so both stay integers until d and dmin.
template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr bool kFiveBits = requires(Panel p) { p.h; };
    static constexpr int kSubBlockBytes = sizeof(Panel) / 8;

    // The minimums of sub-blocks 2p (low) and 2p + 1 (high) as an int16 pair per row.
    static __m512i min_pair(const Panel& block, int p) {
        const __m512i m = load_bytes(block.m[p]);
        const __m512i low = _mm512_ternarylogic_epi32(m, _mm512_slli_epi32(m, 12), _mm512_set1_epi32(0x000F000F), 0xA8);
        const __m512i even = _mm512_srli_epi32(load_bytes(block.s[2 * p]), 2);
        const __m512i odd = _mm512_slli_epi32(load_bytes(block.s[2 * p + 1]), 14);
        const __m512i high = _mm512_ternarylogic_epi32(even, odd, _mm512_set1_epi32(0x00300030), 0xA8);
        return _mm512_or_si512(low, high);
    }

    template <int T>
    static void dot_sub_block(const Panel& block, int j, const int8_t* x, __m512i* s) {
        clear<T>(s);
        if constexpr (kFiveBits)
            dot_five_bit<T>(block.q[j], block.h[j], x, s);
        else
            dot_four_bit<T>(block.q[j], x, s);
    }

    template <int T>
    static void dot(const Panel& block, int64_t b, const ActTile* tile, __m512* a) {
        const int8_t* x = tile->q + 256 * T * b;
        const char* ahead = reinterpret_cast<const char*>(&block) + kPrefetchDistance;
        __m512i s[T];
        for (int j = 0; j < 8; ++j) {
            prefetch<kSubBlockBytes>(ahead + kSubBlockBytes * j);
            dot_sub_block<T>(block, j, x + 32 * T * j, s);
            const __m512i scale = _mm512_and_si512(load_bytes(block.s[j]), _mm512_set1_epi32(63));
            add_scaled<T>(s, _mm512_cvtepi32_ps(scale), a);
        }
        clear<T>(s);
        const int16_t* sums = tile->sum32 + 8 * T * b;
        TREADLE_UNROLL for (int p = 0; p < 4; ++p) {
            const __m512i mins = min_pair(block, p);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] =
                _mm512_dpwssd_epi32(s[t], mins, repeat32(sums + 2 * (T * p + t)));
        }
        const __m512 d = load_f16(block.d), dmin = load_f16(block.dmin);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] =
            _mm512_fnmadd_ps(_mm512_cvtepi32_ps(s[t]), dmin, _mm512_mul_ps(a[t], d));
    }
};

struct Q6K {
    using Panel = PanelQ6_K;
    static constexpr int kSubBlockBytes = sizeof(Panel) / 8;

    // Four columns of half `kHalf`: nibbles from vector i, two high bits from bits 2i and 2i + 1 of h.
    template <int T, int kHalf, int i>
    static void dot_group(const uint8_t* q, __m512i h, const int8_t* x, __m512i* s) {
        const __m512i v = _mm512_loadu_si512(q + 64 * i);
        const __m512i low = kHalf == 0 ? low_nibbles(v) : high_nibbles(v);
        dot4<T>(merge(move_bit<2 * i, 4>(h), _mm512_set1_epi8(48), low), x + 4 * T * (4 * kHalf + i), s);
    }

    // s[t] = 16 columns times x.
    template <int T, int kHalf>
    static void dot_half(const Panel& block, int j, const int8_t* x, __m512i* s) {
        const __m512i h = _mm512_loadu_si512(block.h[j][kHalf]);
        clear<T>(s);
        dot_group<T, kHalf, 0>(block.q[j], h, x, s);
        dot_group<T, kHalf, 1>(block.q[j], h, x, s);
        dot_group<T, kHalf, 2>(block.q[j], h, x, s);
        dot_group<T, kHalf, 3>(block.q[j], h, x, s);
    }

    // The scales of the two halves of sub-block j as an int16 pair per row.
    static __m512i scale_pair(const Panel& block, int j) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.s[j])));
    }

    template <int T>
    static void dot(const Panel& block, int64_t b, const ActTile* tile, __m512* a) {
        const int8_t* x = tile->q + 256 * T * b;
        const char* ahead = reinterpret_cast<const char*>(&block) + kPrefetchDistance;
        __m512i s[T];
        for (int j = 0; j < 8; ++j) {
            prefetch<kSubBlockBytes>(ahead + kSubBlockBytes * j);
            const __m512i scales = scale_pair(block, j);
            dot_half<T, 0>(block, j, x + 32 * T * j, s);
            add_scaled<T>(s, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(scales, 16), 16)), a);
            dot_half<T, 1>(block, j, x + 32 * T * j, s);
            add_scaled<T>(s, _mm512_cvtepi32_ps(_mm512_srai_epi32(scales, 16)), a);
        }
        clear<T>(s);
        const int16_t* sums = tile->sum16 + 16 * T * b;
        TREADLE_UNROLL for (int j = 0; j < 8; ++j) {
            const __m512i scales = scale_pair(block, j);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] =
                _mm512_dpwssd_epi32(s[t], scales, repeat32(sums + 2 * (T * j + t)));
        }
        add_scaled<T>(s, _mm512_set1_ps(-32.0f), a);
        const __m512 d = load_f16(block.d);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] = _mm512_mul_ps(a[t], d);
    }
};

}  // namespace

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q45K<PanelQ4_K>>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q45K<PanelQ5_K>>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q6K>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx512_vnni
