// Single rows of packed panels as f32, for embedding lookups. Products run in f32 in the order of the GGUF reference,
// so values equal the reference's bit for bit.
#include "formats.h"
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
        const float d = factor_of(panel[b], row);
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
void dequantize_k_with_mins(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
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

template <class Panel, int kZeroPoint>
void dequantize_k_centred(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
    const Panel* panel = reinterpret_cast<const Panel*>(bytes);
    for (int64_t i = 0; i < num_columns / 32; ++i) {
        const Panel& block = panel[i / 8];
        const int j = static_cast<int>(i % 8);
        const float scale = factor_of(block, row) * static_cast<float>(scale_of(block, j, row));
        dequantize_columns(
            row, out + 32 * i, [&](int g, uint8_t* w) { unpack_group(block, j, g, w); },
            [&](int, int q) { return scale * static_cast<float>(q - kZeroPoint); });
    }
}

template <class Panel, int kZeroPoint>
void dequantize_k_halves(const uint8_t* bytes, int row, int64_t num_columns, float* out) {
    const Panel* panel = reinterpret_cast<const Panel*>(bytes);
    for (int64_t i = 0; i < num_columns / 32; ++i) {
        const Panel& block = panel[i / 8];
        const int j = static_cast<int>(i % 8);
        float scale[2], min[2] = {};
        for (int v = 0; v < 2; ++v) {
            scale[v] = factor_of(block, row) * static_cast<float>(half_scale_of(block, j, row, v));
            if constexpr (requires { block.dmin; }) {
                min[v] = float_of_f16(block.dmin[row]) * static_cast<float>(half_min_of(block, j, row, v));
            }
        }
        dequantize_columns(
            row, out + 32 * i, [&](int g, uint8_t* w) { unpack_group(block, j, g, w); },
            [&](int column, int q) {
                const float value = scale[column / 16] * static_cast<float>(q - kZeroPoint);
                return value - min[column / 16];
            });
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
            return dequantize_k_with_mins<PanelQ4_K>(panel, row, num_columns, out);
        case kQ5_K:
            return dequantize_k_with_mins<PanelQ5_K>(panel, row, num_columns, out);
        case kQ6_K:
            return dequantize_k_halves<PanelQ6_K, 32>(panel, row, num_columns, out);
        case kQ2_K:
            return dequantize_k_halves<PanelQ2_K, 0>(panel, row, num_columns, out);
        case kQ3_K:
            return dequantize_k_halves<PanelQ3_K, 4>(panel, row, num_columns, out);
        case kIQ4_NL:
            return dequantize_centred<PanelIQ4_NL, kIq4ZeroPoint>(panel, row, num_columns, out);
        case kMXFP4:
            return dequantize_centred<PanelMXFP4, kMxfp4ZeroPoint>(panel, row, num_columns, out);
        case kIQ4_XS:
            return dequantize_k_centred<PanelIQ4_XS, kIq4ZeroPoint>(panel, row, num_columns, out);
        case kTQ1_0:
        case kTQ2_0:
            return dequantize_k_centred<PanelTQ2_0, 1>(panel, row, num_columns, out);
    }
}

}  // namespace treadle
