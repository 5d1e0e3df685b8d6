// The feed-forward half of a layer.
#include <cstring>

#include "products.h"

namespace treadle {

void Runtime::Impl::feed_forward_block(int worker, const LayerWeights& layer) {
    const int64_t columns = layer.gate.columns;
    quantise(worker, num_rows_, columns, {&layer.gate, &layer.up},
             [&](int64_t row) { return normalised(worker, residual_ + row * columns, layer.feed_forward_norm); });
    const TilePlan tiles(num_rows_);
    const Activations& inputs = activations(worker, num_rows_);
    const KernelTable& kernels = model_->kernels();
    const auto activate = model_->config().activation == Activation::kSilu ? kernels.silu_mul : kernels.gelu_mul;
    alignas(64) float gate[kMaxTile * kPanelRows];
    alignas(64) float up[kMaxTile * kPanelRows];
    // Gate and up panels of the same rows go together, so their product never leaves the worker.
    pool_.share(worker, layer.gate.num_panels(), panel_chunk(layer.gate.num_panels()), [&](int64_t begin, int64_t end) {
        request_start(layer.gate.panel(begin));
        request_start(layer.up.panel(begin));
        for (int64_t t = 0; t < tiles.num_tiles; ++t) {
            const ActTile tile = inputs.tile(tiles, t, columns);
            for (int64_t p = begin; p < end; ++p) {
                kernels.matmul[layer.gate.format](layer.gate.panel(p), columns, &tile, gate);
                kernels.matmul[layer.up.format](layer.up.panel(p), columns, &tile, up);
                activate(gate, up, tile.num_tokens * kPanelRows, gate);
                const int64_t rows = std::min<int64_t>(kPanelRows, layer.gate.rows - p * kPanelRows);
                for (int32_t i = 0; i < tile.num_tokens; ++i) {
                    float* target = gated_ + (tiles.start(t) + i) * layer.gate.rows + p * kPanelRows;
                    std::memcpy(target, gate + i * kPanelRows, static_cast<size_t>(rows) * sizeof(float));
                }
            }
        }
    });
    timers_.lap(worker, Operator::kGateUp, [&] { return product_work({&layer.gate, &layer.up}, num_rows_); });
    quantise(worker, num_rows_, layer.gate.rows, {&layer.down},
             [&](int64_t row) { return gated_ + row * layer.gate.rows; });
    multiply_into_residual(worker, layer.down, nullptr, layer.post_feed_forward_norm);
    timers_.lap(worker, Operator::kDown, [&] { return product_work({&layer.down}, num_rows_); });
}

}  // namespace treadle
