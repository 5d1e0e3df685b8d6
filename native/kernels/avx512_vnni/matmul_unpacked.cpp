// Products of unpacked panels, with and without minimums.
#include "entries.h"
#include "product.h"

namespace treadle::avx512_vnni {
namespace {

template <class Kind, bool kMinimum>
using UnpackedPanel = Product<Kind, Unpacked<Kind, kMinimum>>;

}  // namespace

void matmul_unpacked_blocks_32(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<UnpackedPanel<Blocks32, false>>(panel, num_columns, tile, out);
}

void matmul_unpacked_blocks_32_min(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<UnpackedPanel<Blocks32, true>>(panel, num_columns, tile, out);
}

void matmul_unpacked_whole(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<UnpackedPanel<WholeSubBlocks, false>>(panel, num_columns, tile, out);
}

void matmul_unpacked_whole_min(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<UnpackedPanel<WholeSubBlocks, true>>(panel, num_columns, tile, out);
}

void matmul_unpacked_halved(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<UnpackedPanel<HalvedSubBlocks, false>>(panel, num_columns, tile, out);
}

void matmul_unpacked_halved_min(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<UnpackedPanel<HalvedSubBlocks, true>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx512_vnni
