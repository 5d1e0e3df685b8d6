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
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            float a[kPanelRows] = {};
            int32_t min_sum[kPanelRows] = {};
            for (int j = 0; j < 8; ++j) {
                int32_t s[2][kPanelRows];
                dot_halves(panel[b], j, tile->q + b * 256 * num_tokens, num_tokens, t, s);
                const int32_t sum32 = tile->sum32[((b * 4 + j / 2) * num_tokens + t) * 2 + j % 2];
                for (int r = 0; r < kPanelRows; ++r) {
                    const float scale = static_cast<float>(scale_of(panel[b], j, r));
                    a[r] = std::fma(static_cast<float>(s[0][r] + s[1][r]), scale, a[r]);
                    min_sum[r] += min_of(panel[b], j, r) * sum32;
                }
            }
            for (int r = 0; r < kPanelRows; ++r) {
                a[r] = a[r] * float_of_f16(panel[b].d[r]);
                a[r] = std::fma(static_cast<float>(min_sum[r]), -float_of_f16(panel[b].dmin[r]), a[r]);
                acc[r] = std::fma(a[r], tile->scale[b * num_tokens + t], acc[r]);
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
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            float a[kPanelRows] = {};
            int32_t zero_sum[kPanelRows] = {};
            for (int j = 0; j < 8; ++j) {
                int32_t s[2][kPanelRows];
                dot_halves(panel[b], j, tile->q + b * 256 * num_tokens, num_tokens, t, s);
                for (int v = 0; v < 2; ++v) {
                    const int32_t sum16 = tile->sum16[((b * 8 + j) * num_tokens + t) * 2 + v];
                    for (int r = 0; r < kPanelRows; ++r) {
                        const int32_t scale = panel[b].s[j][r][v];
                        a[r] = std::fma(static_cast<float>(s[v][r]), static_cast<float>(scale), a[r]);
                        zero_sum[r] += scale * sum16;
                    }
                }
            }
            for (int r = 0; r < kPanelRows; ++r) {
                a[r] = std::fma(static_cast<float>(zero_sum[r]), -32.0f, a[r]);
                a[r] = a[r] * float_of_f16(panel[b].d[r]);
                acc[r] = std::fma(a[r], tile->scale[b * num_tokens + t], acc[r]);
            }
        }
        for (int r = 0; r < kPanelRows; ++r) out[t * kPanelRows + r] = acc[r];
    }
}

}  // namespace treadle::ref
