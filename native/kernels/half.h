// Short floats in portable C++, for code compiled without instruction set flags (packing, ref). Tables of an
// instruction set have their own conversions and never include this file.
#pragma once

#include <stdint.h>
#include <string.h>

namespace treadle {
namespace {

inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of_f16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    // An f16 pattern moved into an f32 is the value times 2^-112, subnormals included; the product undoes that exactly.
    return float_of_bits(sign | bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f));
}

inline float float_of_bf16(uint16_t value) { return float_of_bits(static_cast<uint32_t>(value) << 16); }

// 2^(e - 128): half of what the exponent byte of an OCP microscaling block stands for.
inline float float_of_half_e8m0(uint8_t e) {
    return float_of_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

// Rounds to nearest even; what is too large becomes infinity, NaN stays NaN (quiet, with the upper payload bits).
inline uint16_t f16_of_float(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // from 65520, half way past the largest
    if (magnitude < 0x38800000) {
        // Below 2^-14 the result is a multiple of 2^-24, which is the last bit of a float near 0.5.
        return static_cast<uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

}  // namespace
}  // namespace treadle
