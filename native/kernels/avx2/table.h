// What every table on the AVX2 kernels has; tables differ in how they multiply quantised weights.
#pragma once

#include "entries.h"

namespace treadle::avx2 {
namespace {

// Products of quantised weights, named after their formats.
struct QuantisedProducts {
    MatmulFn q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs, tq2_0;
    PeakFn peak;  // of these
};

// A constant expression, so that tables need no code that runs when the library is loaded.
constexpr KernelTable make_table(const char* isa, const QuantisedProducts& products) {
    KernelTable table = {
        .isa = isa,
        .matmul = {},
        .matmul_add = {},
        .unpacked = {},
        .quantize = {quantize_f32, quantize_q8},
        .rms_norm = rms_norm,
        .rope_adjacent = rope_adjacent,
        .rope_halves = rope_halves,
        .silu_mul = silu_mul,
        .gelu_mul = gelu_mul,
        .soft_cap = soft_cap,
        .store_k = store_k,
        .store_v = store_v,
        .attend_block = attend_block,
        .attend_block_q8_0 = attend_block_q8_0,
        .peak_int8 = products.peak,
        .peak_f32 = peak_f32,
    };
    table.matmul[kF32] = matmul_f32;
    table.matmul[kF16] = matmul_f16;
    table.matmul[kBF16] = matmul_bf16;
    table.matmul[kQ4_0] = products.q4_0;
    table.matmul[kQ4_1] = products.q4_1;
    table.matmul[kQ5_0] = products.q5_0;
    table.matmul[kQ5_1] = products.q5_1;
    table.matmul[kQ8_0] = products.q8_0;
    table.matmul[kIQ4_NL] = products.iq4_nl;
    table.matmul[kMXFP4] = products.mxfp4;
    table.matmul[kQ2_K] = products.q2_k;
    table.matmul[kQ3_K] = products.q3_k;
    table.matmul[kQ4_K] = products.q4_k;
    table.matmul[kQ5_K] = products.q5_k;
    table.matmul[kQ6_K] = products.q6_k;
    table.matmul[kIQ4_XS] = products.iq4_xs;
    table.matmul[kTQ1_0] = products.tq2_0;
    table.matmul[kTQ2_0] = products.tq2_0;
    table.matmul_add[kF32] = matmul_add_f32;
    table.matmul_add[kF16] = matmul_add_f16;
    table.matmul_add[kBF16] = matmul_add_bf16;
    return table;
}

}  // namespace
}  // namespace treadle::avx2
