// The ref table.
#include "ref.h"

namespace treadle {

namespace {

constexpr KernelTable make_table() {
    KernelTable table{};
    table.isa = "ref";
    table.matmul[kF32] = ref::matmul_f32;
    table.matmul[kF16] = ref::matmul_f16;
    table.matmul[kBF16] = ref::matmul_bf16;
    table.matmul[kQ4_0] = ref::matmul_q4_0;
    table.matmul[kQ4_1] = ref::matmul_q4_1;
    table.matmul[kQ5_0] = ref::matmul_q5_0;
    table.matmul[kQ5_1] = ref::matmul_q5_1;
    table.matmul[kQ8_0] = ref::matmul_q8_0;
    table.matmul[kIQ4_NL] = ref::matmul_iq4_nl;
    table.matmul[kMXFP4] = ref::matmul_mxfp4;
    table.matmul[kQ2_K] = ref::matmul_q2_k;
    table.matmul[kQ3_K] = ref::matmul_q3_k;
    table.matmul[kQ4_K] = ref::matmul_q4_k;
    table.matmul[kQ5_K] = ref::matmul_q5_k;
    table.matmul[kQ6_K] = ref::matmul_q6_k;
    table.matmul[kIQ4_XS] = ref::matmul_iq4_xs;
    table.matmul[kTQ1_0] = ref::matmul_tq2_0;
    table.matmul[kTQ2_0] = ref::matmul_tq2_0;
    table.matmul_add[kF32] = ref::matmul_add_f32;
    table.matmul_add[kF16] = ref::matmul_add_f16;
    table.matmul_add[kBF16] = ref::matmul_add_bf16;
    table.quantize[kActF32] = ref::quantize_f32;
    table.quantize[kActQ8] = ref::quantize_q8;
    table.rms_norm = ref::rms_norm;
    table.rope_adjacent = ref::rope_adjacent;
    table.rope_halves = ref::rope_halves;
    table.silu_mul = ref::silu_mul;
    table.gelu_mul = ref::gelu_mul;
    table.soft_cap = ref::soft_cap;
    table.store_k = ref::store_k;
    table.store_v = ref::store_v;
    table.attend_block = ref::attend_block;
    table.attend_block_q8_0 = ref::attend_block_q8_0;
    table.peak_int8 = ref::peak_int8;
    table.peak_f32 = ref::peak_f32;
    return table;
}

}  // namespace

constinit const KernelTable kRefKernels = make_table();

}  // namespace treadle
