// The feed-forward half of a dense layer, and the products of gate and up that experts share with it.
#include <array>
#include <cstring>

#include "products.h"

namespace treadle {

namespace {

// Prepares both sides so that silu(gate) * up is what kClampedSilu means.
void clamp_for_silu(float* gate, float* up, int64_t num_values) {
    constexpr float kLimit = 7.0f, kSteepness = 1.702f;
    for (int64_t i = 0; i < num_values; ++i) {
        gate[i] = std::min(gate[i], kLimit) * kSteepness;
        up[i] = (std::clamp(up[i], -kLimit, kLimit) + 1.0f) * (1.0f / kSteepness);
    }
}

void square_relu(float* values, int64_t num_values) {
    for (int64_t i = 0; i < num_values; ++i) {
        const float positive = std::max(values[i], 0.0f);
        values[i] = positive * positive;
    }
}

void apply_xielu(const Xielu& xielu, float* values, int64_t num_values) {
    for (int64_t i = 0; i < num_values; ++i) {
        const float x = values[i];
        const float above = xielu.positive * x * x;
        const float below = (exp_f32(std::min(x, xielu.epsilon)) - 1.0f - x) * xielu.negative;
        values[i] = (x > 0.0f ? above : below) + xielu.beta * x;
    }
}

}  // namespace

void Runtime::Impl::activate(float* gate, float* up, int64_t num_values) const {
    const KernelTable& kernels = model_->kernels();
    const Activation activation = model_->config().activation;
    if (activation == Activation::kClampedSilu) clamp_for_silu(gate, up, num_values);
    (activation == Activation::kGelu ? kernels.gelu_mul : kernels.silu_mul)(gate, up, num_values, gate);
}

void Runtime::Impl::activate_ungated(const LayerConfig& layer, float* values, int64_t num_values) const {
    const Activation activation = model_->config().activation;
    if (activation == Activation::kSquaredRelu) return square_relu(values, num_values);
    if (activation == Activation::kXielu) return apply_xielu(layer.xielu, values, num_values);
    model_->kernels().gelu_mul(values, kOnes.data(), num_values, values);
}

void Runtime::Impl::gate_up_tile(const FeedForward& weights, const ReadyPanels& gates, const ReadyPanels& ups,
                                 const TilePlan& tiles, int64_t index, const Activations& inputs, float* out,
                                 int64_t stride) const {
    const int64_t columns = weights.gate.columns;
    alignas(64) float gate[kMaxTile * kPanelRows];
    alignas(64) float up[kMaxTile * kPanelRows];
    const ActTile tile = inputs.tile(tiles, index, columns);
    for (int64_t p = gates.low; p < gates.high; ++p) {
        if (!adapted_.empty()) {
            request_b(weights.gate, p, index);
            request_b(weights.up, p, index);
        }
        gates.multiply(gates.panel(p), columns, &tile, gate);
        ups.multiply(ups.panel(p), columns, &tile, up);
        if (!adapted_.empty()) {
            add_b(weights.gate, p, index, tiles.start(index), gate);
            add_b(weights.up, p, index, tiles.start(index), up);
        }
        const int64_t rows = std::min<int64_t>(kPanelRows, weights.gate.rows - p * kPanelRows);
        if (weights.gate_bias) add_bias(weights.gate_bias + p * kPanelRows, rows, tile.num_tokens, gate);
        if (weights.up_bias) add_bias(weights.up_bias + p * kPanelRows, rows, tile.num_tokens, up);
        activate(gate, up, tile.num_tokens * kPanelRows);
        for (int32_t i = 0; i < tile.num_tokens; ++i) {
            std::memcpy(out + i * stride + (p - gates.low) * kPanelRows, gate + i * kPanelRows,
                        static_cast<size_t>(rows) * sizeof(float));
        }
    }
}

// Gate and up panels of the same rows go together and become inputs of `down` at once: their product never leaves the
// nearest cache.
void Runtime::Impl::multiply_gated(int worker, const LayerWeights& layer) {
    const FeedForward& weights = layer.feed_forward;
    const int64_t columns = weights.gate.columns, num_outputs = weights.gate.rows;
    quantise(worker, num_rows_, columns, {&weights.gate, &weights.up},
             [&](int64_t row) { return normalised(worker, residual_ + row * columns, layer.feed_forward_norm); });
    const TilePlan tiles(num_rows_);
    const Activations& inputs = activations(worker, num_rows_);
    multiply_a(worker, {&weights.gate, &weights.up}, num_rows_, inputs);
    const int64_t num_panels = weights.gate.num_panels();
    const int64_t chunk = (panel_chunk(num_panels) + 1) / 2 * 2;  // whole blocks of 32
    pool_.share(worker, num_panels, chunk, [&](int64_t begin, int64_t end) {
        alignas(64) float gated[kMaxTile * kMaxPanelChunk * kPanelRows];
        each_gate_up_run(worker, weights, begin, end, tiles, [&](const ReadyPanels& gates, const ReadyPanels& ups) {
            const int64_t first = gates.low * kPanelRows;
            const int64_t count = std::min(gates.high * kPanelRows, num_outputs) - first;
            for (int64_t t = 0; t < tiles.num_tiles; ++t) {
                gate_up_tile(weights, gates, ups, tiles, t, inputs, gated, count);
                const ActTile target = skip_columns(gated_activations_.tile(tiles, t, num_outputs), first);
                for (int32_t i = 0; i < target.num_tokens; ++i) {
                    quantise_row(target, i, gated + i * count, count, {&weights.down});
                }
            }
        });
    });
    timers_.lap(worker, Operator::kGateUp, [&] { return product_work({&weights.gate, &weights.up}, num_rows_); });
}

void Runtime::Impl::multiply_ungated(int worker, int32_t index) {
    const LayerWeights& layer = model_->layers()[index];
    const FeedForward& weights = layer.feed_forward;
    const int64_t columns = weights.up.columns;
    quantise(worker, num_rows_, columns, {&weights.up},
             [&](int64_t row) { return normalised(worker, residual_ + row * columns, layer.feed_forward_norm); });
    multiply_a(worker, {&weights.up}, num_rows_);
    multiply(worker, {&weights.up}, num_rows_,
             [&](const Matrix& up, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, float* out) {
                 if (weights.up_bias) add_bias(weights.up_bias + row, rows, num_tokens, out);
                 activate_ungated(model_->config().layers[index], out, num_tokens * kPanelRows);
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     std::memcpy(gated_ + (token + t) * up.rows + row, out + t * kPanelRows,
                                 static_cast<size_t>(rows) * sizeof(float));
                 }
             });
    timers_.lap(worker, Operator::kGateUp, [&] { return product_work({&weights.up}, num_rows_); });
}

void Runtime::Impl::feed_forward_block(int worker, int32_t index) {
    const LayerWeights& layer = model_->layers()[index];
    if (!layer.mixture.experts.empty()) return experts_block(worker, layer);
    const Matrix& down = layer.feed_forward.down;
    const bool is_gated = layer.feed_forward.gate.rows > 0;
    if (is_gated) {
        multiply_gated(worker, layer);
    } else {
        multiply_ungated(worker, index);
        quantise(worker, num_rows_, down.columns, {&down}, [&](int64_t row) { return gated_ + row * down.columns; });
    }
    multiply_into_residual(worker, down, layer.feed_forward.down_bias, layer.post_feed_forward_norm,
                           is_gated ? gated_activations_ : activations(worker, num_rows_));
    timers_.lap(worker, Operator::kDown, [&] { return product_work({&down}, num_rows_); });
    if (layer.residual_feed_forward_norm.weight) normalise_residual(worker, layer.residual_feed_forward_norm);
}

}  // namespace treadle
