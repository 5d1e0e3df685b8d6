// Products with K-quants: Q4_K, Q5_K, Q6_K.
#include <cmath>

#include "dot.h"
#include "half.h"
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

template <class Panel>
void matmul_with_mins(const void* bytes, int64_t num_columns, const ActTile* tile, float* out) {
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
                const float scale = float_of_f16(block.d[r]) * static_cast<float>(scale_of(block, j, r));
                const float min = float_of_f16(block.dmin[r]) * static_cast<float>(min_of(block, j, r));
                const float scaled = static_cast<float>(s[0][r] + s[1][r]) * scale;
                acc[r] = std::fma(scaled, tile->scale[i * num_tokens + t], acc[r]);
                acc[r] = std::fma(-min, tile->scaled_sum[i * num_tokens + t], acc[r]);
            }
        }
        for (int r = 0; r < kPanelRows; ++r) out[t * kPanelRows + r] = acc[r];
    }
}

}  // namespace

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_with_mins<PanelQ4_K>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_with_mins<PanelQ5_K>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* bytes, int64_t num_columns, const ActTile* tile, float* out) {
    const PanelQ6_K* panel = static_cast<const PanelQ6_K*>(bytes);
    const int num_tokens = tile->num_tokens;
    for (int t = 0; t < num_tokens; ++t) {
        float acc[kPanelRows] = {};
        for (int64_t i = 0; i < num_columns / 32; ++i) {
            const PanelQ6_K& block = panel[i / 8];
            const int j = static_cast<int>(i % 8);
            int32_t s[2][kPanelRows];
            dot_halves(block, j, tile->q + i / 8 * 256 * num_tokens, num_tokens, t, s);
            const int32_t* zero = tile->zero16 + 2 * i * num_tokens + t;
            for (int r = 0; r < kPanelRows; ++r) {
                const float d = float_of_f16(block.d[r]);
                float g = static_cast<float>(s[0][r] + zero[0]) * (d * static_cast<float>(block.s[j][r][0]));
                g = std::fma(static_cast<float>(s[1][r] + zero[num_tokens]), d * static_cast<float>(block.s[j][r][1]),
                             g);
                acc[r] = std::fma(g, tile->scale[i * num_tokens + t], acc[r]);
            }
        }
        for (int r = 0; r < kPanelRows; ++r) out[t * kPanelRows + r] = acc[r];
    }
}

}  // namespace treadle::ref
