// Products with weights in blocks of 256: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ2_0.
#include <cmath>

#include "dot.h"
#include "ref.h"
#include "unpack.h"

namespace treadle::ref {

namespace {

// s[v][row] = the sum of unsigned quants times activations of columns 16v .. 16v + 15 of sub-block j, for token t of
// the tile; q is the tile's [64][num_tokens][4] of the block.
template <class Panel>
void dot_halves(const Panel& panel, int j, const int8_t* q, int num_tokens, int t, int32_t s[2][kPanelRows]) {
    for (int r = 0; r < kPanelRows; ++r) s[0][r] = s[1][r] = 0;
    for (int g = 0; g < 8; ++g) {
        uint8_t w[64];
        unpack_group(panel, j, g, w);
        dot_group(w, q + ((8 * j + g) * num_tokens + t) * 4, s[g / 4]);
    }
}

// acc = add(block, j, i, t, row, sums of both halves, acc) for each sub-block j of a block, the i-th of the row.
template <class Panel, class Add>
void add_sub_blocks(const void* bytes, int64_t num_columns, const ActTile* tile, float* out, const Add& add) {
    const Panel* panel = static_cast<const Panel*>(bytes);
    const int num_tokens = tile->num_tokens;
    for (int t = 0; t < num_tokens; ++t) {
        float acc[kPanelRows] = {};
        for (int64_t i = 0; i < num_columns / 32; ++i) {
            const Panel& block = panel[i / 8];
            const int j = static_cast<int>(i % 8);
            int32_t s[2][kPanelRows];
            dot_halves(block, j, tile->q + i / 8 * 256 * num_tokens, num_tokens, t, s);
            for (int r = 0; r < kPanelRows; ++r) {
                const int32_t halves[2] = {s[0][r], s[1][r]};
                acc[r] = add(block, j, i, t, r, halves, acc[r]);
            }
        }
        for (int r = 0; r < kPanelRows; ++r) out[t * kPanelRows + r] = acc[r];
    }
}

template <class Panel>
void matmul_with_mins(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    const auto add = [&](const Panel& block, int j, int64_t i, int t, int r, const int32_t* s, float acc) {
        const int64_t at = i * tile->num_tokens + t;
        const float scale = factor_of(block, r) * static_cast<float>(scale_of(block, j, r));
        const float min = float_of_f16(block.dmin[r]) * static_cast<float>(min_of(block, j, r));
        acc = std::fma(static_cast<float>(s[0] + s[1]) * scale, tile->scale[at], acc);
        return std::fma(-min, tile->scaled_sum[at], acc);
    };
    add_sub_blocks<Panel>(panel, num_columns, tile, out, add);
}

template <class Panel, int kZeroPoint>
void matmul_centred(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    const auto add = [&](const Panel& block, int j, int64_t i, int t, int r, const int32_t* s, float acc) {
        const int64_t at = i * tile->num_tokens + t;
        const float scale = factor_of(block, r) * static_cast<float>(scale_of(block, j, r));
        const int32_t centred = s[0] + s[1] + tile->zero32[at] * kZeroPoint / 128;
        return std::fma(static_cast<float>(centred) * scale, tile->scale[at], acc);
    };
    add_sub_blocks<Panel>(panel, num_columns, tile, out, add);
}

// With a scale for each 16 columns, and minimums if the format has them.
template <class Panel, int kZeroPoint>
void matmul_halves(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    const auto add = [&](const Panel& block, int j, int64_t i, int t, int r, const int32_t* s, float acc) {
        float sum = 0.0f;
        const int32_t* zero = tile->zero16 + 2 * i * tile->num_tokens + t;
        for (int v = 0; v < 2; ++v) {
            const float scale = factor_of(block, r) * static_cast<float>(half_scale_of(block, j, r, v));
            const float centred = static_cast<float>(s[v] + zero[v * tile->num_tokens] * kZeroPoint / 32);
            sum = v == 0 ? centred * scale : std::fma(centred, scale, sum);
        }
        if constexpr (requires { block.dmin; }) {
            for (int v = 0; v < 2; ++v) {
                const float min = float_of_f16(block.dmin[r]) * (static_cast<float>(half_min_of(block, j, r, v)) / 32);
                sum = std::fma(static_cast<float>(zero[v * tile->num_tokens]), min, sum);
            }
        }
        return std::fma(sum, tile->scale[i * tile->num_tokens + t], acc);
    };
    add_sub_blocks<Panel>(panel, num_columns, tile, out, add);
}

}  // namespace

void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_halves<PanelQ2_K, 0>(panel, num_columns, tile, out);
}

void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_halves<PanelQ3_K, 4>(panel, num_columns, tile, out);
}

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_with_mins<PanelQ4_K>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_with_mins<PanelQ5_K>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_halves<PanelQ6_K, 32>(panel, num_columns, tile, out);
}

void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelIQ4_XS, kIq4ZeroPoint>(panel, num_columns, tile, out);
}

void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelTQ2_0, 1>(panel, num_columns, tile, out);
}

}  // namespace treadle::ref
