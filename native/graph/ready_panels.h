// Panels as a product multiplies them best: as they are, or unpacked into the worker's own memory once for many tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "treadle/kernels.h"
#include "treadle/model.h"

namespace treadle {

// Half of a second-level cache of 1 MiB; the other half is for tiles and for weights on their way.
constexpr int64_t kUnpackRoomBytes = 512 << 10;
// From so many tiles on, unpacking costs less than it saves.
constexpr int64_t kUnpackTiles = 8;

struct ReadyPanels {
    MatmulFn multiply;
    const uint8_t* first;
    int64_t stride_bytes;
    int64_t low, high;  // panels low .. high - 1 of the matrix

    const uint8_t* panel(int64_t p) const { return first + (p - low) * stride_bytes; }
};

class PanelRoom {
 public:
    PanelRoom(const KernelTable& kernels, uint8_t* room, std::initializer_list<const Matrix*> matrices,
              int64_t num_tiles)
        : kernels_(kernels), room_(room) {
        if (num_tiles < kUnpackTiles) return;
        int64_t bytes = 0;
        for (const Matrix* matrix : matrices) bytes += unpacked_bytes(*matrix);
        if (bytes > 0) panels_at_once_ = kUnpackRoomBytes / bytes / 2 * 2;
    }

    // run(first, end) for runs of panels low .. high - 1 of the matrices that fit together, of nearly equal length and
    // an even one but for the last: their outputs are whole blocks of 32.
    template <typename Run>
    void each_run(int64_t low, int64_t high, Run&& run) {
        const int64_t num_panels = high - low;
        const int64_t num_runs = panels_at_once_ == 0 ? 1 : (num_panels + panels_at_once_ - 1) / panels_at_once_;
        const int64_t length = (num_panels + 2 * num_runs - 1) / (2 * num_runs) * 2;
        for (int64_t first = low; first < high; first += length) {
            used_ = 0;
            run(first, std::min(first + length, high));
        }
    }

    // Panels low .. high - 1 of one of the matrices, in a run; `copy` as Model::copy_offset.
    ReadyPanels ready(const Matrix& matrix, int64_t copy, int64_t low, int64_t high) {
        const int64_t bytes = panels_at_once_ == 0 ? 0 : unpacked_bytes(matrix);
        const uint8_t* packed = matrix.panel(low) + copy;
        if (bytes == 0) return {kernels_.matmul[matrix.format], packed, matrix.panel_bytes, low, high};
        const UnpackedProduct& product = kernels_.unpacked[matrix.format];
        uint8_t* first = room_ + used_;
        for (int64_t p = low; p < high; ++p) {
            product.unpack(packed + (p - low) * matrix.panel_bytes, matrix.columns, room_ + used_);
            used_ += bytes;
        }
        return {product.matmul, first, bytes, low, high};
    }

 private:
    int64_t unpacked_bytes(const Matrix& matrix) const {
        return matrix.columns / 32 * kernels_.unpacked[matrix.format].block_bytes;
    }

    const KernelTable& kernels_;
    uint8_t* room_;
    int64_t panels_at_once_ = 0;  // 0: none is unpacked
    int64_t used_ = 0;
};

}  // namespace treadle
