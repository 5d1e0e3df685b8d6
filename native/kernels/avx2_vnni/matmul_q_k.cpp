// Products of the formats with blocks of 256 columns: Q4_K, Q5_K, Q6_K.
#include "avx2/product_q_k.h"
#include "dpbusd.h"
#include "entries.h"

namespace treadle::avx2_vnni {
namespace {

template <class Panel>
using Q45K = avx2::Walk<avx2::ProductQ45K<DpbusdSums, Panel>>;
using Q6K = avx2::Walk<avx2::ProductQ6K<DpbusdSums>>;

}  // namespace

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Q45K<PanelQ4_K>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Q45K<PanelQ5_K>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Q6K>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2_vnni
