// Products of F32, F16 and BF16 panels. Two accumulators per token and row quad, even and odd columns; up to three
// tokens a pass, so that accumulators stay in the 32 registers.
#include "entries.h"
#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

struct LoadF32 {
    using Panel = PanelF32;
    static float32x4_t rows(const Panel& column, int quad) { return vld1q_f32(column.w + kLanes * quad); }
};

struct LoadF16 {
    using Panel = PanelF16;
    static float32x4_t rows(const Panel& column, int quad) { return load_f16(column.w + kLanes * quad); }
};

struct LoadBF16 {
    using Panel = PanelF16;
    static float32x4_t rows(const Panel& column, int quad) {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(column.w + kLanes * quad), 16));
    }
};

template <class Load>
struct Product {
    using Panel = typename Load::Panel;

    // acc[quad][t] += the column's rows times token t.
    template <int N>
    static void add_column(const Panel& column, const float* x, float32x4_t (*acc)[N]) {
        TREADLE_UNROLL for (int q = 0; q < kQuads; ++q) {
            const float32x4_t rows = Load::rows(column, q);
            TREADLE_UNROLL for (int t = 0; t < N; ++t) acc[q][t] = vfmaq_n_f32(acc[q][t], rows, x[t]);
        }
    }

    // Tokens first .. first + N - 1 of a tile of T.
    template <int T, int N>
    static void run_tokens(const Panel* column, int64_t num_columns, const ActTile* tile, int first, float* out) {
        const float* x = tile->x + first;
        float32x4_t even[kQuads][N] = {}, odd[kQuads][N] = {};
        int64_t k = 0;
        for (; k + 2 <= num_columns; k += 2, x += 2 * T) {
            prefetch<2 * sizeof(Panel)>(column + k + kPrefetchDistance / sizeof(Panel));
            add_column<N>(column[k], x, even);
            add_column<N>(column[k + 1], x + T, odd);
        }
        if (k < num_columns) add_column<N>(column[k], x, even);
        TREADLE_UNROLL for (int q = 0; q < kQuads; ++q) {
            TREADLE_UNROLL for (int t = 0; t < N; ++t) even[q][t] = vaddq_f32(even[q][t], odd[q][t]);
        }
        store_tile<N>(even, out + kPanelRows * first);
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
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
    run_tile<Product<LoadF32>>(panel, num_columns, tile, out);
}

void matmul_f16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadF16>>(panel, num_columns, tile, out);
}

void matmul_bf16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<LoadBF16>>(panel, num_columns, tile, out);
}

}  // namespace treadle::neon_dotprod
