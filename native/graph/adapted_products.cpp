// What adapters add to products: A x for the rows of each, before the matrix is multiplied, then B times that to every
// panel of its outputs.
#include <algorithm>

#include "products.h"

namespace treadle {

void AdaptedRows::list(const StepInput& input) {
    active_.clear();
    of_row_.clear();
    if (input.adapters == nullptr) return;
    for (int64_t s = 0; s < input.num_sequences; ++s) {
        int32_t index = kNone;
        if (input.adapters[s] != nullptr) {
            const auto found = std::find(active_.begin(), active_.end(), input.adapters[s]);
            index = static_cast<int32_t>(found - active_.begin());
            if (found == active_.end()) active_.push_back(input.adapters[s]);
        }
        of_row_.insert(of_row_.end(), static_cast<size_t>(input.query_lens[s]), index);
    }
}

float* Runtime::Impl::low_rank_inputs(const Matrix& matrix, int64_t first_row) const {
    // Matrices that read the same rows come one after the other in their layer, at most three of them.
    return low_rank_ + (matrix.id % 3 * max_batch_tokens_ + first_row) * kMaxRank;
}

void Runtime::Impl::multiply_a(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_rows) {
    if (adapted_.empty()) return;
    const TilePlan tiles(num_rows);
    const Activations& inputs = activations(worker, num_rows);
    const auto num_matrices = static_cast<int64_t>(matrices.size());
    const auto num_adapters = static_cast<int64_t>(adapted_.active().size());
    pool_.share(worker, tiles.num_tiles * num_matrices * num_adapters, 1, [&](int64_t item, int64_t) {
        const int64_t t = item / (num_matrices * num_adapters);
        const Matrix& matrix = **(matrices.begin() + item / num_adapters % num_matrices);
        const auto index = static_cast<int32_t>(item % num_adapters);
        if (matrix.id < 0 || !adapted_.has_any(index, tiles.start(t), tiles.width(t))) return;
        const LowRank& change = adapted_.active()[static_cast<size_t>(index)]->change(matrix.id);
        const Matrix& a = change.a;
        const int32_t width = tiles.width(t);
        const ActTile tile = inputs.tile(tiles, t, matrix.columns);
        float* target = low_rank_inputs(matrix, tiles.start(t));  // as ActTile::x
        alignas(64) float out[kMaxTile * kPanelRows];
        for (int64_t p = 0; p < a.num_panels(); ++p) {
            model_->kernels().matmul[a.format](a.panel(p), a.columns, &tile, out);
            const int64_t rows = std::min<int64_t>(kPanelRows, a.rows - p * kPanelRows);
            for (int32_t i = 0; i < width; ++i) {
                if (!adapted_.has(index, tiles.start(t) + i)) continue;
                for (int64_t r = 0; r < rows; ++r) {
                    target[(p * kPanelRows + r) * width + i] = change.scale * out[i * kPanelRows + r];
                }
            }
        }
    });
    timers_.lap(worker, Operator::kAdapt);
}

void Runtime::Impl::add_b(const Matrix& matrix, int64_t panel, int64_t first_row, int32_t width, float* out) const {
    if (matrix.id < 0) return;
    alignas(64) float added[kMaxTile * kPanelRows];
    for (size_t index = 0; index < adapted_.active().size(); ++index) {
        const Matrix& b = adapted_.active()[index]->change(matrix.id).b;
        const auto adapter = static_cast<int32_t>(index);
        if (b.rows == 0 || !adapted_.has_any(adapter, first_row, width)) continue;
        ActTile tile{};
        tile.num_tokens = width;
        tile.x = low_rank_inputs(matrix, first_row);
        model_->kernels().matmul[b.format](b.panel(panel), b.columns, &tile, added);
        for (int32_t i = 0; i < width; ++i) {
            if (!adapted_.has(adapter, first_row + i)) continue;
            for (int32_t r = 0; r < kPanelRows; ++r) out[i * kPanelRows + r] += added[i * kPanelRows + r];
        }
    }
}

}  // namespace treadle
