// Products of the formats with blocks of 256 columns: Q4_K, Q5_K, Q6_K.
#include "entries.h"
#include "maddubs.h"
#include "product_q_k.h"

namespace treadle::avx2 {
namespace {

template <class Panel>
using Q45K = Walk<ProductQ45K<MaddubsSums, Panel>>;
using Q6K = Walk<ProductQ6K<MaddubsSums>>;

}  // namespace

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Q45K<PanelQ4_K>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Q45K<PanelQ5_K>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Q6K>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2
