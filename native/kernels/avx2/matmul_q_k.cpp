// Products of the formats with blocks of 256 columns: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ2_0.
#include "entries.h"
#include "maddubs.h"
#include "product_q_k.h"

namespace treadle::avx2 {
namespace {

template <class Source>
using Whole = Walk<ProductWhole<MaddubsSums, Source>>;
template <class Source>
using Halves = Walk<ProductHalves<MaddubsSums, Source>>;

}  // namespace

void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Halves<Q2K>>(panel, num_columns, tile, out);
}

void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Halves<Q3K>>(panel, num_columns, tile, out);
}

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Whole<Q45K<PanelQ4_K>>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Whole<Q45K<PanelQ5_K>>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Halves<Q6K>>(panel, num_columns, tile, out);
}

void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Whole<IQ4_XS>>(panel, num_columns, tile, out);
}

void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Whole<TQ2_0>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2
