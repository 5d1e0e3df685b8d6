// Products of the formats with blocks of 256 columns: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ2_0.
#include "entries.h"
#include "neon_dotprod/product_q_k.h"
#include "smmla.h"

namespace treadle::neon_i8mm {
namespace {

template <class Format>
using Whole = neon_dotprod::ProductK<Sums, neon_dotprod::AddWhole<Format>>;
template <class Format>
using Halves = neon_dotprod::ProductK<Sums, neon_dotprod::AddHalves<Format>>;

}  // namespace

void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Halves<neon_dotprod::Q2K>>(panel, num_columns, tile, out);
}

void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Halves<neon_dotprod::Q3K>>(panel, num_columns, tile, out);
}

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Whole<neon_dotprod::Q45K<PanelQ4_K>>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Whole<neon_dotprod::Q45K<PanelQ5_K>>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Halves<neon_dotprod::Q6K>>(panel, num_columns, tile, out);
}

void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Whole<neon_dotprod::IQ4_XS>>(panel, num_columns, tile, out);
}

void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Whole<neon_dotprod::TQ2_0>>(panel, num_columns, tile, out);
}

}  // namespace treadle::neon_i8mm
