// Products of the formats with blocks of 256 columns: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ2_0.
#include "avx2/product_q_k.h"
#include "dpbusd.h"
#include "entries.h"

namespace treadle::avx2_vnni {
namespace {

template <class Source>
using Whole = avx2::Walk<avx2::ProductWhole<DpbusdSums, Source>>;
template <class Source>
using Halves = avx2::Walk<avx2::ProductHalves<DpbusdSums, Source>>;

}  // namespace

void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Halves<avx2::Q2K>>(panel, num_columns, tile, out);
}

void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Halves<avx2::Q3K>>(panel, num_columns, tile, out);
}

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Whole<avx2::Q45K<PanelQ4_K>>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Whole<avx2::Q45K<PanelQ5_K>>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Halves<avx2::Q6K>>(panel, num_columns, tile, out);
}

void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Whole<avx2::IQ4_XS>>(panel, num_columns, tile, out);
}

void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    avx2::run_tile<Whole<avx2::TQ2_0>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx2_vnni
