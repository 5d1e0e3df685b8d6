// The AVX-512 VNNI table: every operation has its own kernel here, none falls back to another table.
#include "entries.h"

namespace treadle {

using namespace avx512_vnni;

extern const KernelTable kAvx512VnniKernels;

namespace {

constexpr KernelTable make_table() {
    KernelTable table = {
        .isa = "avx512_vnni",
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
        .peak_int8 = peak_int8,
        .peak_f32 = peak_f32,
    };
    table.matmul[kF32] = matmul_f32;
    table.matmul[kF16] = matmul_f16;
    table.matmul[kBF16] = matmul_bf16;
    table.matmul[kQ4_0] = matmul_q4_0;
    table.matmul[kQ4_1] = matmul_q4_1;
    table.matmul[kQ5_0] = matmul_q5_0;
    table.matmul[kQ5_1] = matmul_q5_1;
    table.matmul[kQ8_0] = matmul_q8_0;
    table.matmul[kIQ4_NL] = matmul_iq4_nl;
    table.matmul[kMXFP4] = matmul_mxfp4;
    table.matmul[kQ2_K] = matmul_q2_k;
    table.matmul[kQ3_K] = matmul_q3_k;
    table.matmul[kQ4_K] = matmul_q4_k;
    table.matmul[kQ5_K] = matmul_q5_k;
    table.matmul[kQ6_K] = matmul_q6_k;
    table.matmul[kIQ4_XS] = matmul_iq4_xs;
    table.matmul[kTQ1_0] = matmul_tq2_0;
    table.matmul[kTQ2_0] = matmul_tq2_0;
    table.matmul_add[kF32] = matmul_add_f32;
    table.matmul_add[kF16] = matmul_add_f16;
    table.matmul_add[kBF16] = matmul_add_bf16;
    table.unpacked[kQ4_0] = {576, unpack_q4_0, matmul_unpacked_blocks_32};
    table.unpacked[kQ4_1] = {640, unpack_q4_1, matmul_unpacked_blocks_32_min};
    table.unpacked[kQ5_0] = {576, unpack_q5_0, matmul_unpacked_blocks_32};
    table.unpacked[kQ5_1] = {640, unpack_q5_1, matmul_unpacked_blocks_32_min};
    table.unpacked[kIQ4_NL] = {576, unpack_iq4_nl, matmul_unpacked_blocks_32};
    table.unpacked[kMXFP4] = {576, unpack_mxfp4, matmul_unpacked_blocks_32};
    table.unpacked[kQ2_K] = {768, unpack_q2_k, matmul_unpacked_halved_min};
    table.unpacked[kQ3_K] = {640, unpack_q3_k, matmul_unpacked_halved};
    table.unpacked[kQ4_K] = {640, unpack_q4_k, matmul_unpacked_whole_min};
    table.unpacked[kQ5_K] = {640, unpack_q5_k, matmul_unpacked_whole_min};
    table.unpacked[kQ6_K] = {640, unpack_q6_k, matmul_unpacked_halved};
    table.unpacked[kIQ4_XS] = {576, unpack_iq4_xs, matmul_unpacked_whole};
    table.unpacked[kTQ2_0] = {576, unpack_tq2_0, matmul_unpacked_whole};
    table.unpacked[kTQ1_0] = table.unpacked[kTQ2_0];
    return table;
}

}  // namespace

constinit const KernelTable kAvx512VnniKernels = make_table();

}  // namespace treadle
