// Products of F32, F16 and BF16 panels. Two accumulators per token and half of the rows, even and odd columns; up to
// four tokens at a time, so that accumulators stay in the sixteen registers.
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

template <class Load>
struct Product {
    using Panel = typename Load::Panel;
    static constexpr int kPrefetchColumns = 2048 / sizeof(Panel);

    template <int N>
    static void add_column(__m256 w, const float* x, __m256* acc) {
        TREADLE_UNROLL for (int t = 0; t < N; ++t) acc[t] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[t]), acc[t]);
    }

    // Half h of the rows for N tokens; x and out point at the first of them, in a tile of T.
    template <int T, int N>
    static void run_half(const Panel* column, int64_t num_columns, int h, const float* x, float* out) {
        __m256 even[N], odd[N];
        TREADLE_UNROLL for (int t = 0; t < N; ++t) even[t] = odd[t] = _mm256_setzero_ps();
        int64_t k = 0;
        for (; k + 2 <= num_columns; k += 2, x += 2 * T) {
            prefetch<2 * sizeof(Panel)>(column + k + kPrefetchColumns);
            add_column<N>(Load::rows(column[k], h), x, even);
            add_column<N>(Load::rows(column[k + 1], h), x + T, odd);
        }
        if (k < num_columns) add_column<N>(Load::rows(column[k], h), x, even);
        TREADLE_UNROLL for (int t = 0; t < N; ++t)
            _mm256_storeu_ps(out + kPanelRows * t + kLanes * h, _mm256_add_ps(even[t], odd[t]));
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const Panel* column = static_cast<const Panel*>(panel);
        constexpr int kFirst = T < 4 ? T : 4;
        for (int h = 0; h < 2; ++h) {
            run_half<T, kFirst>(column, num_columns, h, tile->x, out);
            if constexpr (T > 4) run_half<T, T - 4>(column, num_columns, h, tile->x + 4, out + 4 * kPanelRows);
        }
    }
};

}  // namespace

void matmul_f32(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadF32>>(panel, num_columns, tile, out);
}

void matmul_f16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadF16>>(panel, num_columns, tile, out);
}

void matmul_bf16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadBF16>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2
