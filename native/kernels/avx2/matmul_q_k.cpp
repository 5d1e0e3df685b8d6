// Products of the formats with blocks of 256 columns: Q4_K, Q5_K, Q6_K.
#include "dot.h"
#include "entries.h"

namespace treadle::avx2 {
namespace {

// a[t] = fma(float(s[t]), factor, a[t])
template <int T>
inline void add_scaled(const __m256i* s, __m256 factor, __m256* a) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[t]), factor, a[t]);
}

// s[t] += pair of int16 per row times the pair of sums of token t.
template <int T>
inline void add_pair(__m256i pairs, const int16_t* sums, __m256i* s) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] =
        _mm256_add_epi32(s[t], _mm256_madd_epi16(pairs, repeat32(sums + 2 * t)));
}

// Walks the blocks of a panel; Block::dot<T> multiplies half h of one with block b of the tile.
template <class Block>
struct Product {
    using Panel = typename Block::Panel;

    template <int T>
    static void add_half(const Panel& block, int h, int64_t b, const ActTile* tile, __m256* acc) {
        __m256 a[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] = _mm256_setzero_ps();
        Block::template dot<T>(block, h, b, tile, a);
        const float* scale = tile->scale + T * b;
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm256_fmadd_ps(a[t], _mm256_set1_ps(scale[t]), acc[t]);
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const Panel* block = static_cast<const Panel*>(panel);
        __m256 acc[2][T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            add_half<T>(block[b], 0, b, tile, acc[0]);
            add_half<T>(block[b], 1, b, tile, acc[1]);
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            _mm256_storeu_ps(out + kPanelRows * t, acc[0][t]);
            _mm256_storeu_ps(out + kPanelRows * t + kLanes, acc[1][t]);
        }
    }
};

// Requests the sixteenth of the next block that belongs to sub-block j of half h: while one block is multiplied, the
// next one arrives evenly.
template <class Panel>
inline void prefetch_next(const Panel& block, int h, int j) {
    constexpr int kBytes = sizeof(Panel) / 16;
    prefetch<kBytes>(reinterpret_cast<const char*>(&block + 1) + kBytes * (8 * h + j));
}

// Q4_K and Q5_K: scales and minimums have six bits, so both stay integers until d and dmin.
template <class PanelType>
struct Q45K {
    using Panel = PanelType;
    static constexpr bool kFiveBits = requires(Panel p) { p.h; };

    // The minimums of sub-blocks 2p (low) and 2p + 1 (high) as an int16 pair per row.
    static __m256i min_pair(const Panel& block, int h, int p) {
        const __m256i m = widen_bytes(block.m[p] + kLanes * h);
        const __m256i nibbles = _mm256_or_si256(m, _mm256_slli_epi32(m, 12));
        const __m256i even = _mm256_srli_epi32(widen_bytes(block.s[2 * p] + kLanes * h), 2);
        const __m256i odd = _mm256_slli_epi32(widen_bytes(block.s[2 * p + 1] + kLanes * h), 14);
        return _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi32(0x000F000F)),
                               _mm256_and_si256(_mm256_or_si256(even, odd), _mm256_set1_epi32(0x00300030)));
    }

    template <int T>
    static void dot(const Panel& block, int h, int64_t b, const ActTile* tile, __m256* a) {
        const int8_t* x = tile->q + 256 * T * b;
        __m256i s[T];
        for (int j = 0; j < 8; ++j) {
            prefetch_next(block, h, j);
            clear<T>(s);
            if constexpr (kFiveBits)
                dot_five_bit<T>(block.q[j] + 32 * h, block.h[j] + 32 * h, x + 32 * T * j, s);
            else
                dot_four_bit<T>(block.q[j] + 32 * h, x + 32 * T * j, s);
            const __m256i scale = _mm256_and_si256(widen_bytes(block.s[j] + kLanes * h), _mm256_set1_epi32(63));
            add_scaled<T>(s, _mm256_cvtepi32_ps(scale), a);
        }
        clear<T>(s);
        const int16_t* sums = tile->sum32 + 8 * T * b;
        TREADLE_UNROLL for (int p = 0; p < 4; ++p) add_pair<T>(min_pair(block, h, p), sums + 2 * T * p, s);
        const __m256 d = load_f16(block.d + kLanes * h), dmin = load_f16(block.dmin + kLanes * h);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] =
            _mm256_fnmadd_ps(_mm256_cvtepi32_ps(s[t]), dmin, _mm256_mul_ps(a[t], d));
    }
};

struct Q6K {
    using Panel = PanelQ6_K;

    // The scales of the two halves of sub-block j as an int16 pair per row.
    static __m256i scale_pair(const Panel& block, int h, int j) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.s[j][kLanes * h])));
    }

    template <int T>
    static void dot(const Panel& block, int h, int64_t b, const ActTile* tile, __m256* a) {
        const int8_t* x = tile->q + 256 * T * b;
        __m256i s[T];
        for (int j = 0; j < 8; ++j) {
            prefetch_next(block, h, j);
            const uint8_t* q = block.q[j] + 32 * h;
            const __m256i scales = scale_pair(block, h, j);
            clear<T>(s);
            dot_six_bit_half<T, 0>(q, block.h[j][0] + 32 * h, x + 32 * T * j, s);
            add_scaled<T>(s, _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(scales, 16), 16)), a);
            clear<T>(s);
            dot_six_bit_half<T, 1>(q, block.h[j][1] + 32 * h, x + 32 * T * j, s);
            add_scaled<T>(s, _mm256_cvtepi32_ps(_mm256_srai_epi32(scales, 16)), a);
        }
        clear<T>(s);
        const int16_t* sums = tile->sum16 + 16 * T * b;
        TREADLE_UNROLL for (int j = 0; j < 8; ++j) add_pair<T>(scale_pair(block, h, j), sums + 2 * T * j, s);
        add_scaled<T>(s, _mm256_set1_ps(-32.0f), a);
        const __m256 d = load_f16(block.d + kLanes * h);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) a[t] = _mm256_mul_ps(a[t], d);
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
