// Products of the formats with blocks of 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
#include "dot.h"
#include "entries.h"

namespace treadle::avx2 {
namespace {

// What differs between the formats: the dot product of half `h` (8 rows), and the zero point that it leaves to subtract
// (as a power of two, 0 for none) or the minimum.
struct Q4_0 {
    using Panel = PanelQ4_0;
    static constexpr int kZeroPointLog2 = 3;
    template <int T>
    static void dot(const Panel& block, int h, const int8_t* x, __m256i* s) {
        dot_four_bit<T>(block.q + 32 * h, x, s);
    }
};

struct Q4_1 {
    using Panel = PanelQ4_1;
    static constexpr int kZeroPointLog2 = 0;
    template <int T>
    static void dot(const Panel& block, int h, const int8_t* x, __m256i* s) {
        dot_four_bit<T>(block.q + 32 * h, x, s);
    }
};

struct Q5_0 {
    using Panel = PanelQ5_0;
    static constexpr int kZeroPointLog2 = 4;
    template <int T>
    static void dot(const Panel& block, int h, const int8_t* x, __m256i* s) {
        dot_five_bit<T>(block.q + 32 * h, block.h + 32 * h, x, s);
    }
};

struct Q5_1 {
    using Panel = PanelQ5_1;
    static constexpr int kZeroPointLog2 = 0;
    template <int T>
    static void dot(const Panel& block, int h, const int8_t* x, __m256i* s) {
        dot_five_bit<T>(block.q + 32 * h, block.h + 32 * h, x, s);
    }
};

struct Q8_0 {
    using Panel = PanelQ8_0;
    static constexpr int kZeroPointLog2 = 0;  // the dot product is of q - 128 already
    template <int T>
    static void dot(const Panel& block, int h, const int8_t* x, __m256i* s) {
        dot_int8<T>(block.q + 32 * h, x, s);
    }
};

template <class Format>
struct Product {
    using Panel = typename Format::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.m; };

    // acc[t] += half h of one block; `first` is the index of token 0 in the tile's per-block arrays.
    template <int T>
    static void add_half(const Panel& block, int h, const int8_t* x, const ActTile* tile, int64_t first, __m256* acc) {
        __m256i s[T];
        clear<T>(s);
        Format::template dot<T>(block, h, x, s);
        const __m256 d = load_f16(block.d + kLanes * h);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            if constexpr (Format::kZeroPointLog2 > 0) {
                const __m256i zero = _mm256_slli_epi32(repeat32(tile->sum + first + t), Format::kZeroPointLog2);
                s[t] = _mm256_sub_epi32(s[t], zero);
            }
            const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(tile->scale[first + t]));
            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[t]), scale, acc[t]);
        }
        if constexpr (kHasMinimum) {
            const __m256 m = load_f16(block.m + kLanes * h);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
                _mm256_fmadd_ps(m, _mm256_set1_ps(tile->scaled_sum[first + t]), acc[t]);
        }
    }

    // acc[h][t] += blocks first .. end - 1. With several tokens each half walks them by itself: side by side, gcc keeps
    // the activations that both multiply with, more than there are registers, and spills them.
    template <int T>
    static void add_blocks(const Panel* block, int64_t first, int64_t end, const ActTile* tile, __m256 (*acc)[T]) {
        for (int64_t b = first; b < end; ++b) {
            prefetch<sizeof(Panel)>(block + b + kPrefetchDistance / sizeof(Panel));
            add_half<T>(block[b], 0, tile->q + 32 * T * b, tile, T * b, acc[0]);
            if constexpr (T == 1) add_half<T>(block[b], 1, tile->q + 32 * T * b, tile, T * b, acc[1]);
        }
        if constexpr (T == 1) return;
        for (int64_t b = first; b < end; ++b) add_half<T>(block[b], 1, tile->q + 32 * T * b, tile, T * b, acc[1]);
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const Panel* block = static_cast<const Panel*>(panel);
        const int64_t num_blocks = num_columns / 32;
        constexpr int64_t kTurn = 8;  // blocks that stay in the L1 cache for the second half
        __m256 acc[2][T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
        if constexpr (T == 1) {
            add_blocks<T>(block, 0, num_blocks, tile, acc);
        } else {
            for (int64_t b = 0; b < num_blocks; b += kTurn) {
                add_blocks<T>(block, b, b + kTurn < num_blocks ? b + kTurn : num_blocks, tile, acc);
            }
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            _mm256_storeu_ps(out + kPanelRows * t, acc[0][t]);
            _mm256_storeu_ps(out + kPanelRows * t + kLanes, acc[1][t]);
        }
    }
};

}  // namespace

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q4_0>>(panel, num_columns, tile, out);
}

void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q4_1>>(panel, num_columns, tile, out);
}

void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q5_0>>(panel, num_columns, tile, out);
}

void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q5_1>>(panel, num_columns, tile, out);
}

void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q8_0>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2
