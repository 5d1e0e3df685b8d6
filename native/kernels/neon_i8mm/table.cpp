// The AArch64 table for processors with int8 matrix products: the rest is that of neon_dotprod, which they run as well.
#include "entries.h"
#include "neon_dotprod/entries.h"

namespace treadle {

extern const KernelTable kNeonI8mmKernels;

// Indices are ggml type ids, with holes where ids are not weight formats; designated array elements are not C++.
const KernelTable kNeonI8mmKernels = {
    .isa = "neon_i8mm",
    .matmul = {neon_dotprod::matmul_f32,
               neon_dotprod::matmul_f16,
               neon_i8mm::matmul_q4_0,
               neon_i8mm::matmul_q4_1,
               nullptr,
               nullptr,
               neon_i8mm::matmul_q5_0,
               neon_i8mm::matmul_q5_1,
               neon_i8mm::matmul_q8_0,
               nullptr,
               nullptr,
               nullptr,
               neon_i8mm::matmul_q4_k,
               neon_i8mm::matmul_q5_k,
               neon_i8mm::matmul_q6_k,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               neon_dotprod::matmul_bf16},
    .quantize = {neon_dotprod::quantize_f32, neon_dotprod::quantize_q8},
    .rms_norm = neon_dotprod::rms_norm,
    .rope_adjacent = neon_dotprod::rope_adjacent,
    .rope_halves = neon_dotprod::rope_halves,
    .silu_mul = neon_dotprod::silu_mul,
    .store_k = neon_dotprod::store_k,
    .store_v = neon_dotprod::store_v,
    .attend_block = neon_dotprod::attend_block,
    .attend_block_q8_0 = neon_dotprod::attend_block_q8_0,
};

}  // namespace treadle
