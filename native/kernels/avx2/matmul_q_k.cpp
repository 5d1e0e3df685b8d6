// Products of the formats with blocks of 256 columns: Q4_K, Q5_K, Q6_K.
#include "dot.h"
#include "entries.h"

namespace treadle::avx2 {
namespace {

// Walks the sub-blocks of a panel; Block::add<T> adds half h of sub-block j of a block, the i-th of the row, to acc.
template <class Block>
struct Product {
    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const auto* block = static_cast<const typename Block::Panel*>(panel);
        __m256 acc[2][T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            for (int j = 0; j < 8; ++j) Block::template add<T>(block[b], 0, j, 8 * b + j, tile, acc[0]);
            for (int j = 0; j < 8; ++j) Block::template add<T>(block[b], 1, j, 8 * b + j, tile, acc[1]);
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            _mm256_storeu_ps(out + kPanelRows * t, acc[0][t]);
            _mm256_storeu_ps(out + kPanelRows * t + kLanes, acc[1][t]);
        }
    }
};

// Requests one sixteenth of a block ahead, for half h of sub-block j: all of them together request a block.
template <class Panel>
inline void prefetch_ahead(const Panel& block, int h, int j) {
    constexpr int kBytes = sizeof(Panel) / 16;
    prefetch<kBytes>(reinterpret_cast<const char*>(&block) + kPrefetchDistance + kBytes * (8 * h + j));
}

template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr bool kFiveBits = requires(Panel p) { p.h; };

    static __m256 scale(const Panel& block, int h, int j) {
        const __m256i bits = _mm256_and_si256(widen_bytes(block.s[j] + kLanes * h), _mm256_set1_epi32(63));
        return _mm256_mul_ps(load_f16(block.d + kLanes * h), _mm256_cvtepi32_ps(bits));
    }

    static __m256 min(const Panel& block, int h, int j) {
        const __m256i nibbles = _mm256_srli_epi32(widen_bytes(block.m[j / 2] + kLanes * h), 4 * (j % 2));
        const __m256i high = _mm256_srli_epi32(widen_bytes(block.s[j] + kLanes * h), 6);
        const __m256i bits =
            _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)), _mm256_slli_epi32(high, 4));
        return _mm256_mul_ps(load_f16(block.dmin + kLanes * h), _mm256_cvtepi32_ps(bits));
    }

    template <int T>
    static void add(const Panel& block, int h, int j, int64_t i, const ActTile* tile, __m256* acc) {
        prefetch_ahead(block, h, j);
        __m256i s[T];
        clear<T>(s);
        if constexpr (kFiveBits)
            dot_five_bit<T>(block.q[j] + 32 * h, block.h[j] + 32 * h, tile->q + 32 * T * i, s);
        else
            dot_four_bit<T>(block.q[j] + 32 * h, tile->q + 32 * T * i, s);
        const __m256 row_scale = scale(block, h, j), row_min = min(block, h, j);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(s[t]), row_scale);
            acc[t] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(tile->scale[T * i + t]), acc[t]);
            acc[t] = _mm256_fnmadd_ps(row_min, _mm256_set1_ps(tile->scaled_sum[T * i + t]), acc[t]);
        }
    }
};

struct Q6K {
    using Panel = PanelQ6_K;

    template <int T>
    static void add(const Panel& block, int h, int j, int64_t i, const ActTile* tile, __m256* acc) {
        prefetch_ahead(block, h, j);
        // The scales of both halves as an int16 pair per row.
        const __m256i scales =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.s[j][kLanes * h])));
        const __m256 d = load_f16(block.d + kLanes * h);
        const __m256 scale0 =
            _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(scales, 16), 16)));
        const __m256 scale1 = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_srai_epi32(scales, 16)));
        const uint8_t* q = block.q[j] + 32 * h;
        const int8_t* x = tile->q + 32 * T * i;
        const int32_t* zero = tile->zero16 + 2 * T * i;
        __m256i s[T];
        __m256 g[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm256_set1_epi32(zero[t]);
        dot_six_bit_half<T, 0>(q, block.h[j][0] + 32 * h, x, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) g[t] = _mm256_mul_ps(_mm256_cvtepi32_ps(s[t]), scale0);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm256_set1_epi32(zero[T + t]);
        dot_six_bit_half<T, 1>(q, block.h[j][1] + 32 * h, x, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            g[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[t]), scale1, g[t]);
            acc[t] = _mm256_fmadd_ps(g[t], _mm256_set1_ps(tile->scale[T * i + t]), acc[t]);
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

}  // namespace treadle::avx2
