// Stores into q8_0 KV blocks. A table's own kernel rounds; placing the bytes costs little and is the same for all.
#include "half.h"
#include "treadle/kernels.h"

namespace treadle {
namespace {

// 32 dims of one position, rounded to int8.
struct Rounded {
    int8_t q[32];
    uint16_t scale;  // f16
};

Rounded rounded(const KernelTable& table, const float* x) {
    Rounded out;
    float scale, scaled_sum;
    int32_t zero32, zero16[2];
    const ActTile tile{1, out.q, &scale, &zero32, &scaled_sum, zero16, nullptr};
    table.quantize[kActQ8](x, 32, 0, &tile);
    out.scale = f16_of_float(scale);
    return out;
}

}  // namespace

void store_k_q8_0(const KernelTable& table, const float* k, int32_t head_dim, int32_t position, uint8_t* k_block) {
    uint8_t* scales = k_block + int64_t{head_dim} * kKvBlockTokens;
    for (int32_t group = 0; group < head_dim / 32; ++group) {
        const Rounded dims = rounded(table, k + 32 * group);
        uint8_t* out = k_block + 32 * kKvBlockTokens * group + 4 * position;
        for (int d = 0; d < 32; ++d) out[d / 4 * 4 * kKvBlockTokens + d % 4] = static_cast<uint8_t>(dims.q[d] + 128);
        memcpy(scales + 2 * (kKvBlockTokens * group + position), &dims.scale, sizeof dims.scale);
    }
}

void store_v_q8_0(const KernelTable& table, const float* v, int32_t head_dim, int32_t position, uint8_t* v_block) {
    uint8_t* scales = v_block + int64_t{head_dim} * kKvBlockTokens;
    for (int32_t group = 0; group < head_dim / 32; ++group) {
        const Rounded dims = rounded(table, v + 32 * group);
        uint8_t* out = v_block + position / 2 * 2 * head_dim + 64 * group + position % 2;
        for (int d = 0; d < 32; ++d) out[2 * d] = static_cast<uint8_t>(dims.q[d]);
        memcpy(scales + 2 * (kKvBlockTokens * group + position), &dims.scale, sizeof dims.scale);
    }
}

}  // namespace treadle
