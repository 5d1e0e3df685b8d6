// Products of F32, F16 and BF16 panels. Each column is one vector of 16 rows; two accumulators per token, even and odd
// columns, cover the fma latency of a single token and leave registers for eight.
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

struct LoadF32 {
    using Panel = PanelF32;
    static __m512 column(const Panel& p) { return _mm512_loadu_ps(p.w); }
};

struct LoadF16 {
    using Panel = PanelF16;
    static __m512 column(const Panel& p) { return load_f16(p.w); }
};

struct LoadBF16 {
    using Panel = PanelF16;
    static __m512 column(const Panel& p) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p.w));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
};

// Where the sums of token t go; whether the panels that follow this one are read next.
struct Stored {
    static constexpr bool kReadsOn = true;
    float* out;
    void put(int t, __m512 sum) const { _mm512_storeu_ps(out + kPanelRows * t, sum); }
};

struct Added {
    static constexpr bool kReadsOn = false;
    float* out;
    const int32_t* rows;
    void put(int t, __m512 sum) const {
        float* row = out + kPanelRows * rows[t];
        _mm512_storeu_ps(row, _mm512_add_ps(_mm512_loadu_ps(row), sum));
    }
};

template <class Load>
struct Product {
    using Panel = typename Load::Panel;

    template <int T>
    static void add_column(const Panel& column, const float* x, __m512* acc) {
        const __m512 w = Load::column(column);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t]), acc[t]);
    }

    template <int T, class Out>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, Out out) {
        const Panel* column = static_cast<const Panel*>(panel);
        const float* x = tile->x;
        __m512 even[T], odd[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) even[t] = odd[t] = _mm512_setzero_ps();
        int64_t k = 0;
        for (; k + 2 <= num_columns; k += 2, x += 2 * T) {
            if constexpr (Out::kReadsOn) prefetch<2 * sizeof(Panel)>(column + k + kPrefetchDistance / sizeof(Panel));
            add_column<T>(column[k], x, even);
            add_column<T>(column[k + 1], x + T, odd);
        }
        if (k < num_columns) add_column<T>(column[k], x, even);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) out.put(t, _mm512_add_ps(even[t], odd[t]));
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

}  // namespace treadle::avx512_vnni
