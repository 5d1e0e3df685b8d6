// Which rows of a step belong to which adapter, tile by tile.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "activations.h"
#include "treadle/adapter.h"
#include "treadle/runtime.h"

namespace treadle {

// The rows of a tile that one adapter changes. They are multiplied as a tile of their own.
struct TileShare {
    const Adapter* adapter;
    int64_t tile;
    int32_t num_before;  // rows of the tile in shares before this one
    int32_t num_rows;
    std::array<int32_t, kMaxTile> rows;  // places in the tile, ascending
};

class AdaptedRows {
 public:
    void reserve(int64_t max_rows) {
        of_row_.reserve(static_cast<size_t>(max_rows));
        shares_.reserve(static_cast<size_t>(max_rows));
        first_shares_.reserve(static_cast<size_t>(max_rows) + 1);
    }

    void list(const StepInput& input);
    // Of the rows only these are left, ascending.
    void keep(std::span<const int32_t> rows);

    bool empty() const { return shares_.empty(); }
    std::span<const TileShare> shares() const { return shares_; }
    std::span<const TileShare> shares_of(int64_t tile) const {
        const auto at = static_cast<size_t>(tile);
        return shares().subspan(first_shares_[at], first_shares_[at + 1] - first_shares_[at]);
    }

 private:
    void share_tiles();

    std::vector<const Adapter*> of_row_;  // null for none; empty without adapters
    std::vector<TileShare> shares_;       // by tile
    std::vector<size_t> first_shares_;    // of each tile, and their number
};

}  // namespace treadle
