// Entry points of the int8 matrix kernels of AArch64; table.cpp lists them. Meaning and order of operations:
// treadle/kernels.h.
#pragma once

#include "treadle/kernels.h"

namespace treadle::neon_i8mm {

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_iq4_nl(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_mxfp4(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out);

void peak_int8(int64_t num_rounds);

}  // namespace treadle::neon_i8mm
