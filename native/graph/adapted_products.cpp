// What adapters add to products: A x for the rows of each, before the matrix is multiplied, then B times that to every
// panel of its outputs.
#include <algorithm>
#include <optional>

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

namespace {

// Of a panel of B ahead of its product; the processor finds the rest of a long one itself.
constexpr int64_t kRequestedBytes = 1024;

// The rows of a share out of an array of the tile that has one element of four bytes for each of its rows, or several
// such arrays in turn.
template <typename Element>
void gather(const Element* tile, int64_t num_tokens, const TileShare& share, int64_t count, Element* out) {
    static_assert(sizeof(Element) == 4);
    for (int64_t i = 0; i < count; ++i, tile += num_tokens, out += share.num_rows) {
        for (int32_t r = 0; r < share.num_rows; ++r) out[r] = tile[share.rows[static_cast<size_t>(r)]];
    }
}

}  // namespace

float* Runtime::Impl::low_rank_inputs(int32_t a_id, int64_t first_row, const TileShare& share) const {
    // Matrices that read the same rows come one after the other in their layer, at most three of them.
    return low_rank_ + (a_id % 3 * max_batch_tokens_ + first_row + share.num_before) * kMaxRank;
}

ActTile Runtime::Impl::own_inputs(int worker, const ActTile& tile, int64_t columns, ActFormat format,
                                  const TileShare& share) const {
    if (share.num_rows == tile.num_tokens) return tile;
    const ActTile own = share_activations_[static_cast<size_t>(worker)].tile(TilePlan(share.num_rows), 0, columns);
    if (format == kActF32) {
        gather(tile.x, tile.num_tokens, share, columns, own.x);
        return own;
    }
    // What products of Q8_0 read.
    gather(reinterpret_cast<const int32_t*>(tile.q), tile.num_tokens, share, columns / 4,
           reinterpret_cast<int32_t*>(own.q));
    gather(tile.scale, tile.num_tokens, share, columns / 32, own.scale);
    gather(tile.zero32, tile.num_tokens, share, columns / 32, own.zero32);
    return own;
}

void Runtime::Impl::multiply_share(const LowRank& change, const TileShare& share, int64_t first_row,
                                   const ActTile& tile) const {
    const Matrix& a = change.a;
    float* target = low_rank_inputs(change.a_id, first_row, share);  // as ActTile::x
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

void Runtime::Impl::multiply_a(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_rows,
                               const Activations& inputs) {
    if (adapted_.empty()) return;
    const TilePlan tiles(num_rows);
    const auto num_shares = static_cast<int64_t>(adapted_.shares().size());
    const int64_t columns = (*matrices.begin())->columns;
    pool_.share(worker, num_shares, 1, [&](int64_t item, int64_t) {
        const TileShare& share = adapted_.shares()[static_cast<size_t>(item)];
        std::optional<ActTile> own[kNumActFormats];
        for (const Matrix* matrix : matrices) {
            if (matrix->id < 0) continue;
            const LowRank& change = share.adapter->change(matrix->id);
            if (change.a_id != matrix->id) continue;  // unchanged, or the same A as one before
            const ActFormat format = act_format_of(change.a.format);
            if (!own[format]) {
                own[format] = own_inputs(worker, inputs.tile(tiles, share.tile, columns), columns, format, share);
            }
            multiply_share(change, share, tiles.start(share.tile), *own[format]);
        }
    });
    timers_.lap(worker, Operator::kAdapt);
}

void Runtime::Impl::request_b(const Matrix& matrix, int64_t panel, int64_t tile) const {
    if (matrix.id < 0) return;
    for (const TileShare& share : adapted_.shares_of(tile)) {
        const Matrix& b = share.adapter->change(matrix.id).b;
        if (b.rows == 0) continue;
        for (int64_t i = 0; i < std::min(b.panel_bytes, kRequestedBytes); i += 64) {
            __builtin_prefetch(b.panel(panel) + i);
        }
    }
}

void Runtime::Impl::add_b(const Matrix& matrix, int64_t panel, int64_t tile, int64_t first_row, float* out) const {
    if (matrix.id < 0) return;
    for (const TileShare& share : adapted_.shares_of(tile)) {
        const LowRank& change = share.adapter->change(matrix.id);
        const Matrix& b = change.b;
        if (b.rows == 0) continue;
        ActTile inputs{};
        inputs.num_tokens = share.num_rows;
        inputs.x = low_rank_inputs(change.a_id, first_row, share);
        model_->kernels().matmul_add[b.format](b.panel(panel), b.columns, &inputs, share.rows.data(), out);
    }
}

}  // namespace treadle
