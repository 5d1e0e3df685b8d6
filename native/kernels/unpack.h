// The quants of a panel as bytes, one group of four columns at a time, for code compiled without instruction set flags
// (ref, dequantisation).
#pragma once

#include <stdint.h>

#include "formats.h"

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

inline void unpack_group(const PanelQ4_0& panel, int g, uint8_t* w) { unpack_nibbles(panel.q, g, w); }
inline void unpack_group(const PanelQ4_1& panel, int g, uint8_t* w) { unpack_nibbles(panel.q, g, w); }
inline void unpack_group(const PanelQ5_0& panel, int g, uint8_t* w) { unpack_five_bits(panel.q, panel.h, g, w); }
inline void unpack_group(const PanelQ5_1& panel, int g, uint8_t* w) { unpack_five_bits(panel.q, panel.h, g, w); }
inline void unpack_group(const PanelQ8_0& panel, int g, uint8_t* w) {
    for (int i = 0; i < 64; ++i) w[i] = panel.q[64 * g + i];
}

// As above for sub-block j of a K-quant.
inline void unpack_group(const PanelQ4_K& panel, int j, int g, uint8_t* w) { unpack_nibbles(panel.q[j], g, w); }
inline void unpack_group(const PanelQ5_K& panel, int j, int g, uint8_t* w) {
    unpack_five_bits(panel.q[j], panel.h[j], g, w);
}
inline void unpack_group(const PanelQ6_K& panel, int j, int g, uint8_t* w) {
    unpack_nibbles(panel.q[j], g, w);
    const uint8_t* h = panel.h[j][g / 4];
    for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(w[i] | (h[i] >> 2 * (g % 4) & 3) << 4);
}

// The six-bit scale and minimum of Q4_K and Q5_K.
template <class Panel>
inline int scale_of(const Panel& panel, int j, int row) {
    return panel.s[j][row] & 63;
}

template <class Panel>
inline int min_of(const Panel& panel, int j, int row) {
    return (panel.m[j / 2][row] >> j % 2 * 4 & 15) | panel.s[j][row] >> 6 << 4;
}

}  // namespace
}  // namespace treadle
