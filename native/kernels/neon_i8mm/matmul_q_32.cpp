// Products of the formats with blocks of 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
#include "entries.h"
#include "neon_dotprod/product_q_32.h"
#include "smmla.h"

namespace treadle::neon_i8mm {
namespace {

template <class Format>
using Product = neon_dotprod::Product32<Sums, Format>;

}  // namespace

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q4_0>>(panel, num_columns, tile, out);
}

void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q4_1>>(panel, num_columns, tile, out);
}

void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q5_0>>(panel, num_columns, tile, out);
}

void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q5_1>>(panel, num_columns, tile, out);
}

void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q8_0>>(panel, num_columns, tile, out);
}

void matmul_iq4_nl(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::IQ4_NL>>(panel, num_columns, tile, out);
}

void matmul_mxfp4(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::MXFP4>>(panel, num_columns, tile, out);
}

}  // namespace treadle::neon_i8mm
