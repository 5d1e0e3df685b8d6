// Entry points of the AVX-512 VNNI kernels; table.cpp lists them. Meaning and order of operations: treadle/kernels.h.
#pragma once

#include "treadle/kernels.h"

namespace treadle::avx512_vnni {

void matmul_f32(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_f16(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_bf16(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
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
void matmul_unpacked_blocks_32(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_unpacked_blocks_32_min(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_unpacked_whole(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_unpacked_whole_min(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_unpacked_halved(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void matmul_unpacked_halved_min(const void* panel, int64_t num_columns, const ActTile* tile, float* out);
void unpack_q4_0(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q4_1(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q5_0(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q5_1(const void* panel, int64_t num_columns, void* unpacked);
void unpack_iq4_nl(const void* panel, int64_t num_columns, void* unpacked);
void unpack_mxfp4(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q2_k(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q3_k(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q4_k(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q5_k(const void* panel, int64_t num_columns, void* unpacked);
void unpack_q6_k(const void* panel, int64_t num_columns, void* unpacked);
void unpack_iq4_xs(const void* panel, int64_t num_columns, void* unpacked);
void unpack_tq2_0(const void* panel, int64_t num_columns, void* unpacked);
void matmul_add_f32(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out);
void matmul_add_f16(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out);
void matmul_add_bf16(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows, float* out);

void quantize_f32(const float* x, int64_t num_columns, int32_t token, const ActTile* tile);
void quantize_q8(const float* x, int64_t num_columns, int32_t token, const ActTile* tile);

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out);
void rope_adjacent(float* head, const float* cos, const float* sin, int32_t half);
void rope_halves(float* head, const float* cos, const float* sin, int32_t half);
void silu_mul(const float* gate, const float* up, int64_t n, float* out);
void gelu_mul(const float* gate, const float* up, int64_t n, float* out);
void soft_cap(float* x, int64_t n, SoftCap cap);
void store_k(const float* k, int32_t head_dim, int32_t position, uint16_t* k_block);
void store_v(const float* v, int32_t head_dim, int32_t position, uint16_t* v_block);
void attend_block(const AttendArgs* args);
void attend_block_q8_0(const AttendQ8Args* args);
void peak_int8(int64_t num_rounds);
void peak_f32(int64_t num_rounds);

}  // namespace treadle::avx512_vnni
