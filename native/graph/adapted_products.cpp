// What adapters add to products: A x for the rows of each, before the matrix is multiplied, then B times that to every
// panel of its outputs.
#include <algorithm>

#include "products.h"

namespace treadle {

void AdaptedRows::list(const StepInput& input) {
    of_row_.clear();
    shares_.clear();
    if (input.adapters == nullptr) return;
    for (int64_t s = 0; s < input.num_sequences; ++s) {
        of_row_.insert(of_row_.end(), static_cast<size_t>(input.query_lens[s]), input.adapters[s]);
    }
    share_tiles();
}

void AdaptedRows::keep(std::span<const int32_t> rows) {
    if (of_row_.empty()) return;
    for (size_t i = 0; i < rows.size(); ++i) of_row_[i] = of_row_[static_cast<size_t>(rows[i])];
    of_row_.resize(rows.size());
    share_tiles();
}

void AdaptedRows::share_tiles() {
    const TilePlan tiles(static_cast<int64_t>(of_row_.size()));
    shares_.clear();
    first_shares_.assign(1, 0);
    for (int64_t t = 0; t < tiles.num_tiles; ++t) {
        const auto first = static_cast<std::ptrdiff_t>(shares_.size());
        for (int32_t i = 0; i < tiles.width(t); ++i) {
            const Adapter* adapter = of_row_[static_cast<size_t>(tiles.start(t) + i)];
            if (adapter == nullptr) continue;
            auto share = std::find_if(shares_.begin() + first, shares_.end(),
                                      [&](const TileShare& each) { return each.adapter == adapter; });
            if (share == shares_.end()) share = shares_.insert(share, TileShare{adapter, t, 0, 0, {}});
            share->rows[static_cast<size_t>(share->num_rows++)] = i;
        }
        for (size_t i = static_cast<size_t>(first) + 1; i < shares_.size(); ++i) {
            shares_[i].num_before = shares_[i - 1].num_before + shares_[i - 1].num_rows;
        }
        first_shares_.push_back(shares_.size());
    }
}

float* Runtime::Impl::low_rank_inputs(const Matrix& matrix, int64_t first_row, const TileShare& share) const {
    // Matrices that read the same rows come one after the other in their layer, at most three of them.
    return low_rank_ + (matrix.id % 3 * max_batch_tokens_ + first_row + share.num_before) * kMaxRank;
}

ActTile Runtime::Impl::own_inputs(int worker, const ActTile& tile, int64_t columns, const TileShare& share) const {
    if (share.num_rows == tile.num_tokens) return tile;
    ActTile own{};
    own.num_tokens = share.num_rows;
    own.x = worker_inputs_ + worker * kMaxTile * widest_;
    for (int64_t c = 0; c < columns; ++c) {
        for (int32_t i = 0; i < share.num_rows; ++i) {
            own.x[c * share.num_rows + i] = tile.x[c * tile.num_tokens + share.rows[static_cast<size_t>(i)]];
        }
    }
    return own;
}

void Runtime::Impl::multiply_share(const TileShare& share, const Matrix& matrix, int64_t first_row,
                                   const ActTile& tile) const {
    const LowRank& change = share.adapter->change(matrix.id);
    const Matrix& a = change.a;
    float* target = low_rank_inputs(matrix, first_row, share);  // as ActTile::x
    request_start(a.panel(0));
    alignas(64) float out[kMaxTile * kPanelRows];
    for (int64_t p = 0; p < a.num_panels(); ++p) {
        model_->kernels().matmul[a.format](a.panel(p), a.columns, &tile, out);
        const int64_t rows = std::min<int64_t>(kPanelRows, a.rows - p * kPanelRows);
        for (int32_t i = 0; i < share.num_rows; ++i) {
            for (int64_t r = 0; r < rows; ++r) {
                target[(p * kPanelRows + r) * share.num_rows + i] = change.scale * out[i * kPanelRows + r];
            }
        }
    }
}

void Runtime::Impl::multiply_a(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_rows) {
    if (adapted_.empty()) return;
    const TilePlan tiles(num_rows);
    const Activations& inputs = activations(worker, num_rows);
    const auto num_shares = static_cast<int64_t>(adapted_.shares().size());
    const int64_t columns = (*matrices.begin())->columns;
    pool_.share(worker, num_shares, 1, [&](int64_t item, int64_t) {
        const TileShare& share = adapted_.shares()[static_cast<size_t>(item)];
        const auto changes = [&](const Matrix& matrix) {
            return matrix.id >= 0 && share.adapter->change(matrix.id).a.rows > 0;
        };
        if (std::none_of(matrices.begin(), matrices.end(), [&](const Matrix* each) { return changes(*each); })) return;
        const ActTile tile = own_inputs(worker, inputs.tile(tiles, share.tile, columns), columns, share);
        for (const Matrix* matrix : matrices) {
            if (changes(*matrix)) multiply_share(share, *matrix, tiles.start(share.tile), tile);
        }
    });
    timers_.lap(worker, Operator::kAdapt);
}

void Runtime::Impl::add_b(const Matrix& matrix, int64_t panel, int64_t tile, int64_t first_row, float* out) const {
    if (matrix.id < 0) return;
    alignas(64) float added[kMaxTile * kPanelRows];
    for (const TileShare& share : adapted_.shares_of(tile)) {
        const Matrix& b = share.adapter->change(matrix.id).b;
        if (b.rows == 0) continue;
        ActTile inputs{};
        inputs.num_tokens = share.num_rows;
        inputs.x = low_rank_inputs(matrix, first_row, share);
        model_->kernels().matmul[b.format](b.panel(panel), b.columns, &inputs, added);
        for (int32_t i = 0; i < share.num_rows; ++i) {
            float* row = out + share.rows[static_cast<size_t>(i)] * kPanelRows;
            for (int32_t r = 0; r < kPanelRows; ++r) row[r] += added[i * kPanelRows + r];
        }
    }
}

}  // namespace treadle
