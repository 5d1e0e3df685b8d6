// Single rows of packed panels as f32, for embedding lookups. Products run in f32 in the order of the GGUF reference,
// so values equal the reference's bit for bit.
#include "formats.h"
#include "half.h"
#include "treadle/kernels.h"
#include "unpack.h"

namespace treadle {

namespace {

// Calls value(q) for the 32 columns of a sub-block; group(g, w) unpacks four columns of all rows.
template <class Group, class Value>
void dequantize_columns(int row, float* out, const Group& group, const Value& value) {
    for (int g = 0; g < 8; ++g) {
        uint8_t w[64];
        group(g, w);
        for (int k = 0; k < 4; ++k) out[4 * g + k] = value(4 * g + k, static_cast<int>(w[4 * row + k]));
    }
}

template <class Panel, int kZeroPoint>
void dequantize_centred(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
    const Panel* panel = reinterpret_cast<const Panel*>(bytes);
    for (int64_t b = 0; b < num_columns / 32; ++b) {
        const float d = float_of_f16(panel[b].d[row]);
        dequantize_columns(
            row, out + 32 * b, [&](int g, uint8_t* w) { unpack_group(panel[b], g, w); },
            [&](int, int q) { return d * static_cast<float>(q - kZeroPoint); });
    }
}

template <class Panel>
void dequantize_offset(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
    const Panel* panel = reinterpret_cast<const Panel*>(bytes);
    for (int64_t b = 0; b < num_columns / 32; ++b) {
        const float d = float_of_f16(panel[b].d[row]);
        const float m = float_of_f16(panel[b].m[row]);
        dequantize_columns(
            row, out + 32 * b, [&](int g, uint8_t* w) { unpack_group(panel[b], g, w); },
            [&](int, int q) { return d * static_cast<float>(q) + m; });
    }
}

template <class Panel>
void dequantize_k(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
    const Panel* panel = reinterpret_cast<const Panel*>(bytes);
    for (int64_t b = 0; b < num_columns / 256; ++b) {
        const float d = float_of_f16(panel[b].d[row]);
        const float dmin = float_of_f16(panel[b].dmin[row]);
        for (int j = 0; j < 8; ++j) {
            const float scale = d * static_cast<float>(scale_of(panel[b], j, row));
            const float min = dmin * static_cast<float>(min_of(panel[b], j, row));
            dequantize_columns(
                row, out + 256 * b + 32 * j, [&](int g, uint8_t* w) { unpack_group(panel[b], j, g, w); },
                [&](int, int q) { return scale * static_cast<float>(q) - min; });
        }
    }
}

void dequantize_q6_k(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
    const PanelQ6_K* panel = reinterpret_cast<const PanelQ6_K*>(bytes);
    for (int64_t b = 0; b < num_columns / 256; ++b) {
        const float d = float_of_f16(panel[b].d[row]);
        for (int j = 0; j < 8; ++j) {
            const float scale[2] = {d * panel[b].s[j][row][0], d * panel[b].s[j][row][1]};
            dequantize_columns(
                row, out + 256 * b + 32 * j, [&](int g, uint8_t* w) { unpack_group(panel[b], j, g, w); },
                [&](int column, int q) { return scale[column / 16] * static_cast<float>(q - 32); });
        }
    }
}

}  // namespace

void dequantize_panel_row(uint32_t weight_format, const uint8_t* panel, int32_t row, int64_t num_columns, float* out) {
    switch (weight_format) {
        case kF32:
            for (int64_t c = 0; c < num_columns; ++c) out[c] = reinterpret_cast<const PanelF32*>(panel)[c].w[row];
            return;
        case kF16:
            for (int64_t c = 0; c < num_columns; ++c) {
                out[c] = float_of_f16(reinterpret_cast<const PanelF16*>(panel)[c].w[row]);
            }
            return;
        case kBF16:
            for (int64_t c = 0; c < num_columns; ++c) {
                out[c] = float_of_bf16(reinterpret_cast<const PanelF16*>(panel)[c].w[row]);
            }
            return;
        case kQ4_0:
            return dequantize_centred<PanelQ4_0, 8>(panel, row, num_columns, out);
        case kQ4_1:
            return dequantize_offset<PanelQ4_1>(panel, row, num_columns, out);
        case kQ5_0:
            return dequantize_centred<PanelQ5_0, 16>(panel, row, num_columns, out);
        case kQ5_1:
            return dequantize_offset<PanelQ5_1>(panel, row, num_columns, out);
        case kQ8_0:
            return dequantize_centred<PanelQ8_0, 128>(panel, row, num_columns, out);
        case kQ4_K:
            return dequantize_k<PanelQ4_K>(panel, row, num_columns, out);
        case kQ5_K:
            return dequantize_k<PanelQ5_K>(panel, row, num_columns, out);
        case kQ6_K:
            return dequantize_q6_k(panel, row, num_columns, out);
    }
}

}  // namespace treadle
