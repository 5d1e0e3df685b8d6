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

// Walks the sub-blocks of a panel; Block::add<T> adds sub-block j of a block, the i-th of the row, to acc.
template <class Block>
struct Product {
    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const auto* block = static_cast<const typename Block::Panel*>(panel);
        __m512 acc[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            for (int j = 0; j < 8; ++j) Block::template add<T>(block[b], j, 8 * b + j, tile, acc);
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + kPanelRows * t, acc[t]);
    }
};

template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr bool kFiveBits = requires(Panel p) { p.h; };
    static constexpr int kSubBlockBytes = sizeof(Panel) / 8;

    static __m512 scale(const Panel& block, int j) {
        const __m512i bits = _mm512_and_si512(load_bytes(block.s[j]), _mm512_set1_epi32(63));
        return _mm512_mul_ps(load_f16(block.d), _mm512_cvtepi32_ps(bits));
    }

    static __m512 min(const Panel& block, int j) {
        const __m512i low =
            _mm512_and_si512(_mm512_srli_epi32(load_bytes(block.m[j / 2]), 4 * (j % 2)), _mm512_set1_epi32(15));
        const __m512i high = _mm512_srli_epi32(load_bytes(block.s[j]), 6);
        const __m512i bits = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
        return _mm512_mul_ps(load_f16(block.dmin), _mm512_cvtepi32_ps(bits));
    }

    template <int T>
    static void add(const Panel& block, int j, int64_t i, const ActTile* tile, __m512* acc) {
        prefetch<kSubBlockBytes>(reinterpret_cast<const char*>(&block) + kPrefetchDistance + kSubBlockBytes * j);
        __m512i s[T];
        clear<T>(s);
        if constexpr (kFiveBits)
            dot_five_bit<T>(block.q[j], block.h[j], tile->q + 32 * T * i, s);
        else
            dot_four_bit<T>(block.q[j], tile->q + 32 * T * i, s);
        const __m512 row_scale = scale(block, j), row_min = min(block, j);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), row_scale);
            acc[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(tile->scale[T * i + t]), acc[t]);
            acc[t] = _mm512_fnmadd_ps(row_min, _mm512_set1_ps(tile->scaled_sum[T * i + t]), acc[t]);
        }
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

    // s[t] = 16 columns times x, zero point taken off.
    template <int T, int kHalf>
    static void dot_half(const Panel& block, int j, const int8_t* x, const int32_t* zero, __m512i* s) {
        const __m512i h = _mm512_loadu_si512(block.h[j][kHalf]);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm512_set1_epi32(zero[T * kHalf + t]);
        dot_group<T, kHalf, 0>(block.q[j], h, x, s);
        dot_group<T, kHalf, 1>(block.q[j], h, x, s);
        dot_group<T, kHalf, 2>(block.q[j], h, x, s);
        dot_group<T, kHalf, 3>(block.q[j], h, x, s);
    }

    template <int T>
    static void add(const Panel& block, int j, int64_t i, const ActTile* tile, __m512* acc) {
        prefetch<kSubBlockBytes>(reinterpret_cast<const char*>(&block) + kPrefetchDistance + kSubBlockBytes * j);
        // The scales of both halves as an int16 pair per row.
        const __m512i scales = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.s[j])));
        const __m512 d = load_f16(block.d);
        const __m512 scale0 =
            _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(scales, 16), 16)));
        const __m512 scale1 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_srai_epi32(scales, 16)));
        const int8_t* x = tile->q + 32 * T * i;
        const int32_t* zero = tile->zero16 + 2 * T * i;
        __m512i s[T];
        __m512 g[T];
        dot_half<T, 0>(block, j, x, zero, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) g[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), scale0);
        dot_half<T, 1>(block, j, x, zero, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), scale1, g[t]);
            acc[t] = _mm512_fmadd_ps(g[t], _mm512_set1_ps(tile->scale[T * i + t]), acc[t]);
        }
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
