// The feed-forward half of a layer that is a mixture of experts.
#include <cstring>

#include "products.h"

namespace treadle {

void Runtime::Impl::choose_experts(int worker, const LayerWeights& layer, int64_t row) {
    const Mixture& mixture = layer.mixture;
    const int64_t columns = mixture.router.columns;
    float shared_weight = 1.0f;
    if (mixture.shared_gate) {
        const float* input = normalised(worker, residual_ + row * columns, layer.feed_forward_norm);
        double product = 0.0;
        for (int64_t i = 0; i < columns; ++i) product += double{input[i]} * mixture.shared_gate[i];
        shared_weight = 1.0f / (1.0f + exp_f32(-static_cast<float>(product)));
    }
    dispatch_.choose(row, mixture.choice_bias, shared_weight);
}

void Runtime::Impl::route(int worker, const LayerWeights& layer) {
    const Mixture& mixture = layer.mixture;
    const int64_t columns = mixture.router.columns;
    quantise(worker, num_rows_, columns, {&mixture.router},
             [&](int64_t row) { return normalised(worker, residual_ + row * columns, layer.feed_forward_norm); });
    multiply(worker, {&mixture.router}, num_rows_,
             [&](const Matrix&, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, float* out) {
                 if (mixture.router_bias) add_bias(mixture.router_bias + row, rows, num_tokens, out);
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     std::memcpy(dispatch_.router_logits(token + t) + row, out + t * kPanelRows,
                                 static_cast<size_t>(rows) * sizeof(float));
                 }
             });
    pool_.share(worker, num_rows_, 1, [&](int64_t row, int64_t) { choose_experts(worker, layer, row); });
    if (worker == 0) dispatch_.order(mixture, num_rows_);
    pool_.barrier(worker);
    timers_.lap(worker, Operator::kRoute, [&] { return product_work({&mixture.router}, num_rows_); });
}

// each(active, tile of the active expert) for every tile: by every worker for itself where pairs are few, as
// quantise().
template <typename Each>
void Runtime::Impl::each_expert_tile(int worker, Each&& each) {
    const auto all_active = dispatch_.active();
    if (dispatch_.num_pairs() <= kRepeatedTokens) {
        for (const ExpertDispatch::Active& active : all_active) {
            for (int64_t tile = active.first_tile; tile < active.end_tile; ++tile)
                each(active, tile - active.first_tile);
        }
        return;
    }
    pool_.share(worker, all_active.back().end_tile, 1, [&](int64_t tile, int64_t) {
        const auto has = [&](const ExpertDispatch::Active& one) { return tile < one.end_tile; };
        const ExpertDispatch::Active& active = *std::ranges::find_if(all_active, has);
        each(active, tile - active.first_tile);
    });
}

void Runtime::Impl::quantise_pairs(int worker, const LayerWeights& layer) {
    const int64_t columns = layer.mixture.router.columns;
    const Activations& target = activations(worker, dispatch_.num_pairs());
    each_expert_tile(worker, [&](const ExpertDispatch::Active& active, int64_t index) {
        const FeedForward& expert = layer.mixture.experts[static_cast<size_t>(active.expert)];
        const TilePlan tiles(active.num_pairs);
        const ActTile tile = target.after(active.first_pair * columns).tile(tiles, index, columns);
        for (int32_t i = 0; i < tile.num_tokens; ++i) {
            const int64_t token = dispatch_.token_of(active.first_pair + tiles.start(index) + i);
            const float* input = normalised(worker, residual_ + token * columns, layer.feed_forward_norm);
            quantise_row(tile, i, input, columns, {&expert.gate, &expert.up});
        }
    });
    timers_.lap(worker, Operator::kNormQuantise);
}

void Runtime::Impl::quantise_gated_pairs(int worker, const Mixture& mixture) {
    const Activations& target = activations(worker, dispatch_.num_pairs());
    each_expert_tile(worker, [&](const ExpertDispatch::Active& active, int64_t index) {
        const FeedForward& expert = mixture.experts[static_cast<size_t>(active.expert)];
        const int64_t columns = expert.down.columns;
        const TilePlan tiles(active.num_pairs);
        const ActTile tile = target.after(active.first_gated).tile(tiles, index, columns);
        const float* rows = gated_ + active.first_gated + tiles.start(index) * columns;
        for (int32_t i = 0; i < tile.num_tokens; ++i) {
            quantise_row(tile, i, rows + i * columns, columns, {&expert.down});
        }
    });
    timers_.lap(worker, Operator::kNormQuantise);
}

void Runtime::Impl::multiply_gate_up(int worker, const Mixture& mixture) {
    const int64_t columns = mixture.router.columns;
    const Activations& inputs = activations(worker, dispatch_.num_pairs());
    const int64_t num_panels = dispatch_.active().back().end_gate_panel;
    pool_.share(worker, num_panels, panel_chunk(num_panels), [&](int64_t begin, int64_t end) {
        for (const ExpertDispatch::Active& active : dispatch_.active()) {
            const int64_t low = std::max(begin, active.first_gate_panel), high = std::min(end, active.end_gate_panel);
            if (low >= high) continue;
            const FeedForward& expert = mixture.experts[static_cast<size_t>(active.expert)];
            const int64_t first = low - active.first_gate_panel, num_outputs = expert.gate.rows;
            const TilePlan tiles(active.num_pairs);
            const auto run = [&](const ReadyPanels& gates, const ReadyPanels& ups) {
                for (int64_t t = 0; t < tiles.num_tiles; ++t) {
                    float* out = gated_ + active.first_gated + tiles.start(t) * num_outputs + gates.low * kPanelRows;
                    gate_up_tile(expert, gates, ups, tiles, t, inputs.after(active.first_pair * columns), out,
                                 num_outputs);
                }
            };
            each_gate_up_run(worker, expert, first, high - active.first_gate_panel, tiles, run);
        }
    });
    timers_.lap(worker, Operator::kGateUp, [&] { return dispatch_.gate_up_work(mixture); });
}

void Runtime::Impl::multiply_down(int worker, const Mixture& mixture) {
    const Activations& inputs = activations(worker, dispatch_.num_pairs());
    const int64_t num_panels = dispatch_.active().back().end_down_panel;
    pool_.share(worker, num_panels, panel_chunk(num_panels), [&](int64_t begin, int64_t end) {
        for (const ExpertDispatch::Active& active : dispatch_.active()) {
            const int64_t low = std::max(begin, active.first_down_panel), high = std::min(end, active.end_down_panel);
            if (low >= high) continue;
            const FeedForward& expert = mixture.experts[static_cast<size_t>(active.expert)];
            const auto store = [&](const Matrix& down, int64_t row, int64_t rows, int64_t pair, int64_t num_pairs,
                                   float* out) {
                if (expert.down_bias) add_bias(expert.down_bias + row, rows, num_pairs, out);
                for (int64_t i = 0; i < num_pairs; ++i) {
                    std::memcpy(expert_out_ + (active.first_pair + pair + i) * down.rows + row, out + i * kPanelRows,
                                static_cast<size_t>(rows) * sizeof(float));
                }
            };
            multiply_panels(worker, expert.down, low - active.first_down_panel, high - active.first_down_panel,
                            TilePlan(active.num_pairs), inputs.after(active.first_gated), store);
        }
    });
    timers_.lap(worker, Operator::kDown, [&] { return dispatch_.down_work(mixture); });
}

// Always in the order of a token's choice, so the sum does not depend on which other tokens chose the same experts.
void Runtime::Impl::add_experts(int worker) {
    const int64_t hidden_size = model_->config().hidden_size;
    const float scale = model_->config().residual_scale;
    pool_.share(worker, num_rows_, 1, [&](int64_t row, int64_t) {
        float* target = residual_ + row * hidden_size;
        float* sum = worker_rows_ + worker * hidden_size;
        std::fill_n(sum, hidden_size, 0.0f);
        for (int64_t slot = 0; slot < dispatch_.num_slots(); ++slot) {
            const float* out = expert_out_ + dispatch_.pair_of(row, slot) * hidden_size;
            const float weight = dispatch_.weight_of(row, slot);
            for (int64_t i = 0; i < hidden_size; ++i) sum[i] += weight * out[i];
        }
        for (int64_t i = 0; i < hidden_size; ++i) target[i] += scale * sum[i];
    });
    timers_.lap(worker, Operator::kAddExperts);
}

void Runtime::Impl::experts_block(int worker, const LayerWeights& layer) {
    if (num_rows_ == 0) return;
    route(worker, layer);
    quantise_pairs(worker, layer);
    multiply_gate_up(worker, layer.mixture);
    quantise_gated_pairs(worker, layer.mixture);
    multiply_down(worker, layer.mixture);
    add_experts(worker);
}

}  // namespace treadle
