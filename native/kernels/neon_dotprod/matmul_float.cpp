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

// Where a quad of the sums of token t goes; whether the panels that follow this one are read next.
struct Stored {
    static constexpr bool kReadsOn = true;
    float* out;
    void put(int t, int quad, float32x4_t sum) const { vst1q_f32(out + kPanelRows * t + kLanes * quad, sum); }
};

struct Added {
    static constexpr bool kReadsOn = false;
    float* out;
    const int32_t* rows;
    void put(int t, int quad, float32x4_t sum) const {
        float* to = out + kPanelRows * rows[t] + kLanes * quad;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum));
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
    template <int T, int N, class Out>
    static void run_tokens(const Panel* column, int64_t num_columns, const ActTile* tile, int first, Out out) {
        const float* x = tile->x + first;
        float32x4_t even[kQuads][N] = {}, odd[kQuads][N] = {};
        int64_t k = 0;
        for (; k + 2 <= num_columns; k += 2, x += 2 * T) {
            if constexpr (Out::kReadsOn) prefetch<2 * sizeof(Panel)>(column + k + kPrefetchDistance / sizeof(Panel));
            add_column<N>(column[k], x, even);
            add_column<N>(column[k + 1], x + T, odd);
        }
        if (k < num_columns) add_column<N>(column[k], x, even);
        TREADLE_UNROLL for (int q = 0; q < kQuads; ++q) {
            TREADLE_UNROLL for (int t = 0; t < N; ++t) out.put(first + t, q, vaddq_f32(even[q][t], odd[q][t]));
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

}  // namespace treadle::neon_dotprod
