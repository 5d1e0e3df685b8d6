// Products of F32, F16 and BF16 panels. Two accumulators per token and half of the rows, even and odd columns; up to
// three tokens a pass, so that accumulators stay in the sixteen registers.
#include "entries.h"
#include "vec.h"

namespace treadle::avx2 {
namespace {

struct LoadF32 {
    using Panel = PanelF32;
    static __m256 rows(const Panel& column, int h) { return _mm256_loadu_ps(column.w + kLanes * h); }
};

struct LoadF16 {
    using Panel = PanelF16;
    static __m256 rows(const Panel& column, int h) { return load_f16(column.w + kLanes * h); }
};

struct LoadBF16 {
    using Panel = PanelF16;
    static __m256 rows(const Panel& column, int h) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(column.w + kLanes * h));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
};

// Where half h of the sums of token t go; whether the panels that follow this one are read next.
struct Stored {
    static constexpr bool kReadsOn = true;
    float* out;
    void put(int t, int h, __m256 sum) const { _mm256_storeu_ps(out + kPanelRows * t + kLanes * h, sum); }
};

struct Added {
    static constexpr bool kReadsOn = false;
    float* out;
    const int32_t* rows;
    void put(int t, int h, __m256 sum) const {
        float* to = out + kPanelRows * rows[t] + kLanes * h;
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sum));
    }
};

template <class Load>
struct Product {
    using Panel = typename Load::Panel;

    // acc[h][t] += half h of the column's rows times token t.
    template <int N>
    static void add_column(const Panel& column, const float* x, __m256 acc[2][N]) {
        const __m256 low = Load::rows(column, 0), high = Load::rows(column, 1);
        TREADLE_UNROLL for (int t = 0; t < N; ++t) {
            const __m256 value = _mm256_set1_ps(x[t]);
            acc[0][t] = _mm256_fmadd_ps(low, value, acc[0][t]);
            acc[1][t] = _mm256_fmadd_ps(high, value, acc[1][t]);
        }
    }

    // Tokens first .. first + N - 1 of a tile of T.
    template <int T, int N, class Out>
    static void run_tokens(const Panel* column, int64_t num_columns, const ActTile* tile, int first, Out out) {
        const float* x = tile->x + first;
        __m256 even[2][N], odd[2][N];
        TREADLE_UNROLL for (int t = 0; t < N; ++t) {
            even[0][t] = even[1][t] = odd[0][t] = odd[1][t] = _mm256_setzero_ps();
        }
        int64_t k = 0;
        for (; k + 2 <= num_columns; k += 2, x += 2 * T) {
            if constexpr (Out::kReadsOn) prefetch<2 * sizeof(Panel)>(column + k + kPrefetchDistance / sizeof(Panel));
            add_column<N>(column[k], x, even);
            add_column<N>(column[k + 1], x + T, odd);
        }
        if (k < num_columns) add_column<N>(column[k], x, even);
        TREADLE_UNROLL for (int t = 0; t < N; ++t) {
            TREADLE_UNROLL for (int h = 0; h < 2; ++h) out.put(first + t, h, _mm256_add_ps(even[h][t], odd[h][t]));
        }
    }

    template <int T, class Out>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, Out out) {
        const Panel* column = static_cast<const Panel*>(panel);
        constexpr int kPass = 3;
        for (int first = 0; first + kPass <= T; first += kPass) {
            run_tokens<T, kPass>(column, num_columns, tile, first, out);
        }
        constexpr int kRest = T % kPass;
        if constexpr (kRest > 0) run_tokens<T, kRest>(column, num_columns, tile, T - kRest, out);
    }
};

}  // namespace

void matmul_f32(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadF32>>(panel, num_columns, tile, Stored{out});
}

void matmul_f16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadF16>>(panel, num_columns, tile, Stored{out});
}

void matmul_bf16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadBF16>>(panel, num_columns, tile, Stored{out});
}

void matmul_add_f32(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out) {
    run_tile<Product<LoadF32>>(panel, num_columns, tile, Added{out, rows});
}

void matmul_add_f16(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out) {
    run_tile<Product<LoadF16>>(panel, num_columns, tile, Added{out, rows});
}

void matmul_add_bf16(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out) {
    run_tile<Product<LoadBF16>>(panel, num_columns, tile, Added{out, rows});
}

}  // namespace treadle::avx2
