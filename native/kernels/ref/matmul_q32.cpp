// Products with weights in blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
#include <cmath>

#include "dot.h"
#include "ref.h"
#include "unpack.h"

namespace treadle::ref {

namespace {

// s[t][row] = the sum of unsigned quants times activations of one block; q is the tile's [8][num_tokens][4] of the
// block.
template <class Panel>
void dot_block(const Panel& panel, const int8_t* q, int num_tokens, int32_t s[kMaxTile][kPanelRows]) {
    for (int t = 0; t < num_tokens; ++t) {
        for (int r = 0; r < kPanelRows; ++r) s[t][r] = 0;
    }
    for (int g = 0; g < 8; ++g) {
        uint8_t w[64];
        unpack_group(panel, g, w);
        for (int t = 0; t < num_tokens; ++t) dot_group(w, q + (g * num_tokens + t) * 4, s[t]);
    }
}

void set_zero(const ActTile* tile, float* out) {
    for (int i = 0; i < tile->num_tokens * kPanelRows; ++i) out[i] = 0.0f;
}

template <class Panel, int kZeroPoint>
void matmul_centred(const void* bytes, int64_t num_columns, const ActTile* tile, float* out) {
    const Panel* panel = static_cast<const Panel*>(bytes);
    const int num_tokens = tile->num_tokens;
    set_zero(tile, out);
    for (int64_t b = 0; b < num_columns / 32; ++b) {
        int32_t s[kMaxTile][kPanelRows];
        dot_block(panel[b], tile->q + b * 32 * num_tokens, num_tokens, s);
        for (int t = 0; t < num_tokens; ++t) {
            const int64_t at = b * num_tokens + t;
            for (int r = 0; r < kPanelRows; ++r) {
                const float centred = static_cast<float>(s[t][r] + tile->zero32[at] * kZeroPoint / 128);
                float* acc = out + t * kPanelRows + r;
                *acc = std::fma(centred, factor_of(panel[b], r) * tile->scale[at], *acc);
            }
        }
    }
}

template <class Panel>
void matmul_offset(const void* bytes, int64_t num_columns, const ActTile* tile, float* out) {
    const Panel* panel = static_cast<const Panel*>(bytes);
    const int num_tokens = tile->num_tokens;
    set_zero(tile, out);
    for (int64_t b = 0; b < num_columns / 32; ++b) {
        int32_t s[kMaxTile][kPanelRows];
        dot_block(panel[b], tile->q + b * 32 * num_tokens, num_tokens, s);
        for (int t = 0; t < num_tokens; ++t) {
            const int64_t at = b * num_tokens + t;
            for (int r = 0; r < kPanelRows; ++r) {
                float* acc = out + t * kPanelRows + r;
                *acc = std::fma(static_cast<float>(s[t][r]), factor_of(panel[b], r) * tile->scale[at], *acc);
                *acc = std::fma(float_of_f16(panel[b].m[r]), tile->scaled_sum[at], *acc);
            }
        }
    }
}

}  // namespace

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelQ4_0, 8>(panel, num_columns, tile, out);
}

void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_offset<PanelQ4_1>(panel, num_columns, tile, out);
}

void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelQ5_0, 16>(panel, num_columns, tile, out);
}

void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_offset<PanelQ5_1>(panel, num_columns, tile, out);
}

void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelQ8_0, 128>(panel, num_columns, tile, out);
}

void matmul_iq4_nl(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelIQ4_NL, kIq4ZeroPoint>(panel, num_columns, tile, out);
}

void matmul_mxfp4(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul_centred<PanelMXFP4, kMxfp4ZeroPoint>(panel, num_columns, tile, out);
}

}  // namespace treadle::ref
