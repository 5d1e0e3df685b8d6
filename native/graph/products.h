// The two loops every product goes through: inputs into tiles, tiles times panels. Templates, so that what is done with
// a row or an output is part of the loop.
#pragma once

#include <algorithm>

#include "runtime_impl.h"

namespace treadle {

// Kernels request weights some KiB ahead of their use, into the next panels; the first ones of a chunk nobody has
// requested. On a Zen 5 (November 2026) this made a product of eight tokens and 1536 columns a fifth faster.
inline void request_start(const uint8_t* panel) {
    constexpr int kBytes = 7168;
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(panel + i);
}

// What GELU without a gate is multiplied by.
inline constexpr auto kOnes = [] {
    std::array<float, kMaxTile * kPanelRows> ones;
    ones.fill(1.0f);
    return ones;
}();

// A part of a tile of this many columns stays in the nearest cache while token after token is written into it.
constexpr int64_t kQuantiseColumns = 2048;

// The most panels that a worker takes at once.
constexpr int64_t kMaxPanelChunk = 8;

// out[token][16] += bias[16], for the rows there are.
inline void add_bias(const float* bias, int64_t num_rows, int64_t num_tokens, float* out) {
    for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t r = 0; r < num_rows; ++r) out[t * kPanelRows + r] += bias[r];
    }
}

template <typename Emit>
void Runtime::Impl::multiply_panels(int worker, const Matrix& matrix, int64_t low, int64_t high, const TilePlan& tiles,
                                    const Activations& inputs, Emit&& emit) const {
    alignas(64) float out[kMaxTile * kPanelRows];
    const int64_t copy = copy_offsets_[static_cast<size_t>(worker)];
    request_start(matrix.panel(low) + copy);
    PanelRoom room = panel_room(worker, {&matrix}, tiles);
    room.each_run(low, high, [&](int64_t first, int64_t end) {
        const ReadyPanels panels = room.ready(matrix, copy, first, end);
        // Tile outside, panel inside: a tile is read once into the nearest cache, a few panels stay in the next one.
        for (int64_t t = 0; t < tiles.num_tiles; ++t) {
            const ActTile tile = inputs.tile(tiles, t, matrix.columns);
            for (int64_t p = first; p < end; ++p) {
                if (!adapted_.empty()) request_b(matrix, p, t);
                panels.multiply(panels.panel(p), matrix.columns, &tile, out);
                if (!adapted_.empty()) add_b(matrix, p, t, tiles.start(t), out);
                const int64_t rows = std::min<int64_t>(kPanelRows, matrix.rows - p * kPanelRows);
                emit(matrix, p * kPanelRows, rows, tiles.start(t), tile.num_tokens, out);
            }
        }
    });
}

template <typename Run>
void Runtime::Impl::each_gate_up_run(int worker, const FeedForward& weights, int64_t low, int64_t high,
                                     const TilePlan& tiles, Run&& run) const {
    const int64_t copy = copy_offsets_[static_cast<size_t>(worker)];
    request_start(weights.gate.panel(low) + copy);
    request_start(weights.up.panel(low) + copy);
    PanelRoom room = panel_room(worker, {&weights.gate, &weights.up}, tiles);
    room.each_run(low, high, [&](int64_t first, int64_t end) {
        const ReadyPanels gates = room.ready(weights.gate, copy, first, end);
        run(gates, room.ready(weights.up, copy, first, end));
    });
}

template <typename Emit>
void Runtime::Impl::multiply(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_tokens,
                             const Activations& inputs, Emit&& emit) {
    const TilePlan tiles(num_tokens);
    int64_t num_panels = 0;
    for (const Matrix* matrix : matrices) num_panels += matrix->num_panels();
    pool_.share(worker, num_panels, panel_chunk(num_panels), [&](int64_t begin, int64_t end) {
        int64_t first_panel = 0;  // of the matrix, in the common numbering
        for (const Matrix* matrix : matrices) {
            const int64_t low = std::max<int64_t>(begin - first_panel, 0);
            const int64_t high = std::min(end - first_panel, matrix->num_panels());
            first_panel += matrix->num_panels();
            if (low < high) multiply_panels(worker, *matrix, low, high, tiles, inputs, emit);
        }
    });
}

template <typename Row>
void Runtime::Impl::quantise(int worker, int64_t num_rows, int64_t columns,
                             std::initializer_list<const Matrix*> consumers, Row&& row) {
    const TilePlan tiles(num_rows);
    const Activations& target = activations(worker, num_rows);
    const auto quantise_one = [&](int64_t index, int64_t first_column, int64_t end_column) {
        const int64_t tile = tiles.tile_of(index);
        const auto token = static_cast<int32_t>(index - tiles.start(tile));
        quantise_row(skip_columns(target.tile(tiles, tile, columns), first_column), token, row(index) + first_column,
                     end_column - first_column, consumers);
    };
    if (num_rows <= kRepeatedTokens) {
        for (int64_t index = 0; index < num_rows; ++index) quantise_one(index, 0, columns);
        timers_.lap(worker, Operator::kNormQuantise);
        return;
    }
    // The tokens of a tile interleave inside cache lines: a worker takes all of them, of some of the columns.
    const int64_t num_workers = tiles.num_tiles < 4 * pool_.num_threads() ? pool_.num_threads() : 1;
    const int64_t num_parts = std::max((columns + kQuantiseColumns - 1) / kQuantiseColumns, num_workers);
    const int64_t part = (columns + 32 * num_parts - 1) / (32 * num_parts) * 32;
    pool_.share(worker, tiles.num_tiles * num_parts, 1, [&](int64_t item, int64_t) {
        const int64_t tile = item / num_parts, first = std::min(item % num_parts * part, columns);
        for (int32_t i = 0; i < tiles.width(tile); ++i) {
            quantise_one(tiles.start(tile) + i, first, std::min(first + part, columns));
        }
    });
    timers_.lap(worker, Operator::kNormQuantise);
}

}  // namespace treadle
