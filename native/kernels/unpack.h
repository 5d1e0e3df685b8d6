// The quants of a panel as bytes, one group of four columns at a time, for code compiled without instruction set flags
// (ref, dequantisation).
#pragma once

#include <stdint.h>

#include "formats.h"
#include "half.h"

namespace treadle {
namespace {

// w[4 * row + k] = the unsigned quant of column 4 * g + k of a 32-column sub-block, g = 0..7.
inline void unpack_nibbles(const uint8_t* q, int g, uint8_t* w) {
    const uint8_t* vector = q + 64 * (g % 4);
    const int shift = g / 4 * 4;
    for (int i = 0; i < 64; ++i) w[i] = vector[i] >> shift & 15;
}

inline void unpack_five_bits(const uint8_t* q, const uint8_t* h, int g, uint8_t* w) {
    unpack_nibbles(q, g, w);
    for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(w[i] | (h[i] >> g & 1) << 4);
}

inline void unpack_values(const uint8_t* q, const int8_t* values, int zero_point, int g, uint8_t* w) {
    unpack_nibbles(q, g, w);
    for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(values[w[i]] + zero_point);
}

inline void unpack_bit_pairs(const uint8_t (*q)[64], int g, uint8_t* w) {
    for (int i = 0; i < 64; ++i) w[i] = q[g / 4][i] >> 2 * (g % 4) & 3;
}

inline void unpack_group(const PanelQ4_0& panel, int g, uint8_t* w) { unpack_nibbles(panel.q, g, w); }
inline void unpack_group(const PanelQ4_1& panel, int g, uint8_t* w) { unpack_nibbles(panel.q, g, w); }
inline void unpack_group(const PanelQ5_0& panel, int g, uint8_t* w) { unpack_five_bits(panel.q, panel.h, g, w); }
inline void unpack_group(const PanelQ5_1& panel, int g, uint8_t* w) { unpack_five_bits(panel.q, panel.h, g, w); }
inline void unpack_group(const PanelQ8_0& panel, int g, uint8_t* w) {
    for (int i = 0; i < 64; ++i) w[i] = panel.q[64 * g + i];
}

inline void unpack_group(const PanelIQ4_NL& panel, int g, uint8_t* w) {
    unpack_values(panel.q, kIq4Values, kIq4ZeroPoint, g, w);
}
inline void unpack_group(const PanelMXFP4& panel, int g, uint8_t* w) {
    unpack_values(panel.q, kMxfp4Values, kMxfp4ZeroPoint, g, w);
}

// As above for sub-block j of a K-quant.
inline void unpack_group(const PanelQ4_K& panel, int j, int g, uint8_t* w) { unpack_nibbles(panel.q[j], g, w); }
inline void unpack_group(const PanelQ5_K& panel, int j, int g, uint8_t* w) {
    unpack_five_bits(panel.q[j], panel.h[j], g, w);
}
inline void unpack_group(const PanelQ6_K& panel, int j, int g, uint8_t* w) {
    uint8_t high[64];
    unpack_nibbles(panel.q[j], g, w);
    unpack_bit_pairs(panel.h[j], g, high);
    for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(w[i] | high[i] << 4);
}
inline void unpack_group(const PanelQ2_K& panel, int j, int g, uint8_t* w) { unpack_bit_pairs(panel.q[j], g, w); }
inline void unpack_group(const PanelQ3_K& panel, int j, int g, uint8_t* w) {
    unpack_bit_pairs(panel.q[j], g, w);
    for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(w[i] | (panel.h[j][i] >> g & 1) << 2);
}
inline void unpack_group(const PanelIQ4_XS& panel, int j, int g, uint8_t* w) {
    unpack_values(panel.q[j], kIq4Values, kIq4ZeroPoint, g, w);
}
inline void unpack_group(const PanelTQ2_0& panel, int j, int g, uint8_t* w) { unpack_bit_pairs(panel.q[j], g, w); }

// The factor of a whole block of a row.
template <class Panel>
inline float factor_of(const Panel& panel, int row) {
    return float_of_f16(panel.d[row]);
}
inline float factor_of(const PanelMXFP4& panel, int row) { return float_of_half_e8m0(panel.e[row]); }

// The integer scale of sub-block j, for formats that have one, and the minimum of Q4_K and Q5_K.
template <class Panel>
inline int scale_of(const Panel& panel, int j, int row) {
    return panel.s[j][row] & 63;
}
inline int scale_of(const PanelIQ4_XS& panel, int j, int row) { return panel.s[j][row]; }
inline int scale_of(const PanelTQ2_0&, int, int) { return 1; }

// The scale of half v of sub-block j, for formats that have one, and the minimum of Q2_K.
template <class Panel>
inline int half_scale_of(const Panel& panel, int j, int row, int v) {
    return panel.s[j][row][v];
}
inline int half_scale_of(const PanelQ2_K& panel, int j, int row, int v) { return panel.s[j][row][v] & 15; }
inline int half_min_of(const PanelQ2_K& panel, int j, int row, int v) { return panel.s[j][row][v] >> 4; }

template <class Panel>
inline int min_of(const Panel& panel, int j, int row) {
    return (panel.m[j / 2][row] >> j % 2 * 4 & 15) | panel.s[j][row] >> 6 << 4;
}

}  // namespace
}  // namespace treadle
