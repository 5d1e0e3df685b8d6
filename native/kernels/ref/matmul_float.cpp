// Products with float weights.
#include <cmath>

#include "half.h"
#include "ref.h"

namespace treadle::ref {

namespace {

template <class Panel, class ToFloat, class Put>
void matmul_into(const void* bytes, int64_t num_columns, const ActTile* tile, ToFloat to_float, Put put) {
    const Panel* panel = static_cast<const Panel*>(bytes);
    const int num_tokens = tile->num_tokens;
    for (int t = 0; t < num_tokens; ++t) {
        float acc[2][kPanelRows] = {};
        for (int64_t k = 0; k < num_columns; ++k) {
            const float x = tile->x[k * num_tokens + t];
            for (int r = 0; r < kPanelRows; ++r) acc[k % 2][r] = std::fma(to_float(panel[k].w[r]), x, acc[k % 2][r]);
        }
        for (int r = 0; r < kPanelRows; ++r) put(t, r, acc[0][r] + acc[1][r]);
    }
}

template <class Panel, class ToFloat>
void matmul(const void* panel, int64_t num_columns, const ActTile* tile, float* out, ToFloat to_float) {
    matmul_into<Panel>(panel, num_columns, tile, to_float,
                       [&](int t, int r, float sum) { out[t * kPanelRows + r] = sum; });
}

template <class Panel, class ToFloat>
void matmul_add(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out,
                ToFloat to_float) {
    matmul_into<Panel>(panel, num_columns, tile, to_float,
                       [&](int t, int r, float sum) { out[rows[t] * kPanelRows + r] += sum; });
}

}  // namespace

void matmul_f32(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul<PanelF32>(panel, num_columns, tile, out, [](float w) { return w; });
}

void matmul_f16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul<PanelF16>(panel, num_columns, tile, out, float_of_f16);
}

void matmul_bf16(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    matmul<PanelF16>(panel, num_columns, tile, out, float_of_bf16);
}

void matmul_add_f32(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out) {
    matmul_add<PanelF32>(panel, num_columns, tile, rows, out, [](float w) { return w; });
}

void matmul_add_f16(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out) {
    matmul_add<PanelF16>(panel, num_columns, tile, rows, out, float_of_f16);
}

void matmul_add_bf16(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out) {
    matmul_add<PanelF16>(panel, num_columns, tile, rows, out, float_of_bf16);
}

}  // namespace treadle::ref
