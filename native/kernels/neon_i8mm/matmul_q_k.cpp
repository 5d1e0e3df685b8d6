// Products of the formats with blocks of 256 columns: Q4_K, Q5_K, Q6_K.
#include "entries.h"
#include "neon_dotprod/product_q_k.h"
#include "smmla.h"

namespace treadle::neon_i8mm {
namespace {

template <class Format>
using Product = neon_dotprod::ProductK<Sums, Format>;

}  // namespace

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q45K<PanelQ4_K>>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q45K<PanelQ5_K>>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    neon_dotprod::run_tile<Product<neon_dotprod::Q6K>>(panel, num_columns, tile, out);
}

}  // namespace treadle::neon_i8mm
