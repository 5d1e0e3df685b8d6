// Products of the formats with blocks of 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
#include "avx2/product_q_32.h"
#include "dpbusd.h"
#include "entries.h"

namespace treadle::avx2_vnni {
namespace {

template <class Format>
using Product = avx2::Walk<avx2::Product32<DpbusdSums, Format>>;

}  // namespace

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::Q4_0>>(panel, num_columns, tile, out);
}

void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::Q4_1>>(panel, num_columns, tile, out);
}

void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::Q5_0>>(panel, num_columns, tile, out);
}

void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::Q5_1>>(panel, num_columns, tile, out);
}

void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::Q8_0>>(panel, num_columns, tile, out);
}

void matmul_iq4_nl(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::IQ4_NL>>(panel, num_columns, tile, out);
}

void matmul_mxfp4(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Product<avx2::MXFP4>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2_vnni
