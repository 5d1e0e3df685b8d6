// The AArch64 table for processors with dot products: every operation has its own kernel here, none falls back to
// another table.
#include "entries.h"

namespace treadle {

using namespace neon_dotprod;

extern const KernelTable kNeonDotprodKernels;

// Indices are ggml type ids, with holes where ids are not weight formats; designated array elements are not C++.
const KernelTable kNeonDotprodKernels = {
    .isa = "neon_dotprod",
    .matmul = {matmul_f32,  matmul_f16, matmul_q4_0, matmul_q4_1, nullptr,     nullptr,     matmul_q5_0, matmul_q5_1,
               matmul_q8_0, nullptr,    nullptr,     nullptr,     matmul_q4_k, matmul_q5_k, matmul_q6_k, nullptr,
               nullptr,     nullptr,    nullptr,     nullptr,     nullptr,     nullptr,     nullptr,     nullptr,
               nullptr,     nullptr,    nullptr,     nullptr,     nullptr,     nullptr,     matmul_bf16},
    .quantize = {quantize_f32, quantize_q8},
    .rms_norm = rms_norm,
    .rope_adjacent = rope_adjacent,
    .rope_halves = rope_halves,
    .silu_mul = silu_mul,
    .store_k = store_k,
    .store_v = store_v,
    .attend_block = attend_block,
    .attend_block_q8_0 = attend_block_q8_0,
};

}  // namespace treadle
