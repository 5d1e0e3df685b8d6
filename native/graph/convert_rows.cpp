#include "convert_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"
#include "treadle/kernels.h"

namespace treadle {
namespace {

constexpr int64_t kBlock = 32;

struct BlockQ8_0 {
    uint16_t d;
    int8_t q[kBlock];
};

void read_values(uint32_t format, const uint8_t* in, int64_t count, float* values) {
    if (format == kF32) {
        std::memcpy(values, in, static_cast<size_t>(count) * sizeof(float));
        return;
    }
    if (format == kQ8_0) {
        BlockQ8_0 block;
        std::memcpy(&block, in, sizeof block);
        for (int64_t i = 0; i < kBlock; ++i) values[i] = float_of_f16(block.d) * static_cast<float>(block.q[i]);
        return;
    }
    uint16_t halves[kBlock];
    std::memcpy(halves, in, static_cast<size_t>(count) * sizeof(uint16_t));
    for (int64_t i = 0; i < count; ++i) {
        values[i] = format == kF16 ? float_of_f16(halves[i]) : float_of_bf16(halves[i]);
    }
}

// The scale is rounded up, so that the largest value is at most 127 of it, however small they are.
BlockQ8_0 quantised(const float* values) {
    float largest = 0.0f;
    bool is_finite = true;
    for (int64_t i = 0; i < kBlock; ++i) {
        largest = std::max(largest, std::abs(values[i]));
        is_finite = is_finite && std::isfinite(values[i]);
    }
    BlockQ8_0 block = {};
    block.d = f16_of_float(is_finite ? largest / 127.0f : NAN);
    if (float_of_f16(block.d) * 127.0f < largest) ++block.d;
    const float d = float_of_f16(block.d);
    if (d == 0.0f || !std::isfinite(d)) return block;
    for (int64_t i = 0; i < kBlock; ++i) block.q[i] = static_cast<int8_t>(std::nearbyint(values[i] / d));
    return block;
}

void write_values(uint32_t format, const float* values, int64_t count, uint8_t* out) {
    if (format == kF32) {
        std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
        return;
    }
    if (format == kQ8_0) {
        const BlockQ8_0 block = quantised(values);
        std::memcpy(out, &block, sizeof block);
        return;
    }
    uint16_t halves[kBlock];
    for (int64_t i = 0; i < count; ++i) halves[i] = f16_of_float(values[i]);
    std::memcpy(out, halves, static_cast<size_t>(count) * sizeof(uint16_t));
}

int64_t bytes_of(uint32_t format, int64_t count) { return count / block_columns(format) * row_block_bytes(format); }

}  // namespace

void convert_rows(uint32_t from, const uint8_t* in, uint32_t to, int64_t count, uint8_t* out) {
    for (int64_t first = 0; first < count; first += kBlock) {
        float values[kBlock];
        const int64_t num_values = std::min(kBlock, count - first);
        read_values(from, in + bytes_of(from, first), num_values, values);
        write_values(to, values, num_values, out + bytes_of(to, first));
    }
}

}  // namespace treadle
