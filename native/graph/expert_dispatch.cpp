#include <algorithm>

#include "activations.h"
#include "expert_dispatch.h"

namespace treadle {

ExpertDispatch::ExpertDispatch(const ModelConfig& config, int64_t max_tokens)
    : config_(config),
      max_tokens_(config.experts.count > 0 ? max_tokens : 0),
      num_slots_(config.experts.used + (config.experts.shared_feed_forward_size > 0 ? 1 : 0)) {
    const auto pairs = static_cast<size_t>(max_pairs());
    const auto experts = static_cast<size_t>(config.experts.count) + 1;
    logits_.resize(static_cast<size_t>(max_tokens_ * config.experts.count));
    chosen_.resize(pairs);
    weights_.resize(pairs);
    pairs_.resize(pairs);
    tokens_.resize(pairs);
    next_.resize(experts);
    active_.reserve(experts);
}

int64_t ExpertDispatch::max_gated() const {
    const ExpertConfig& experts = config_.experts;
    return max_tokens_ * (int64_t{experts.used} * experts.feed_forward_size + experts.shared_feed_forward_size);
}

void ExpertDispatch::choose(int64_t token, float shared_weight) {
    const ExpertConfig& experts = config_.experts;
    float* logits = router_logits(token);
    float* weights = weights_.data() + token * num_slots_;
    int32_t* best = chosen_.data() + token * num_slots_;  // so far, the largest first; of equals the first one
    for (int32_t expert = 0; expert < experts.count; ++expert) {
        int32_t place = std::min(expert, experts.used - 1);
        if (expert >= experts.used && !(logits[expert] > logits[best[place]])) continue;
        for (; place > 0 && logits[expert] > logits[best[place - 1]]; --place) best[place] = best[place - 1];
        best[place] = expert;
    }
    const float top = logits[best[0]];
    float total = 0.0f;
    for (int32_t slot = 0; slot < experts.used; ++slot) {
        weights[slot] = exp_f32(logits[best[slot]] - top);
        if (experts.normalise) total += weights[slot];
    }
    if (!experts.normalise) {
        for (int32_t expert = 0; expert < experts.count; ++expert) total += exp_f32(logits[expert] - top);
    }
    for (int32_t slot = 0; slot < experts.used; ++slot) weights[slot] /= total;
    if (num_slots_ > experts.used) {
        best[experts.used] = experts.count;
        weights[experts.used] = shared_weight;
    }
}

void ExpertDispatch::order(const Mixture& mixture, int64_t num_tokens) {
    num_pairs_ = num_tokens * num_slots_;
    std::fill(next_.begin(), next_.end(), 0);
    for (int64_t i = 0; i < num_pairs_; ++i) ++next_[static_cast<size_t>(chosen_[static_cast<size_t>(i)])];
    active_.clear();
    Active at{};
    for (size_t expert = 0; expert < mixture.experts.size(); ++expert) {
        at.num_pairs = next_[expert];
        next_[expert] = at.first_pair;
        if (at.num_pairs == 0) continue;
        const FeedForward& weights = mixture.experts[expert];
        at.expert = static_cast<int32_t>(expert);
        at.end_gate_panel = at.first_gate_panel + weights.gate.num_panels();
        at.end_down_panel = at.first_down_panel + weights.down.num_panels();
        at.end_tile = at.first_tile + TilePlan(at.num_pairs).num_tiles;
        active_.push_back(at);
        at.first_pair += at.num_pairs;
        at.first_gated += at.num_pairs * weights.gate.rows;
        at.first_gate_panel = at.end_gate_panel;
        at.first_down_panel = at.end_down_panel;
        at.first_tile = at.end_tile;
    }
    for (int64_t token = 0; token < num_tokens; ++token) {
        for (int64_t slot = 0; slot < num_slots_; ++slot) {
            const auto at = static_cast<size_t>(token * num_slots_ + slot);
            const int64_t pair = next_[static_cast<size_t>(chosen_[at])]++;
            pairs_[at] = pair;
            tokens_[static_cast<size_t>(pair)] = token;
        }
    }
}

Work ExpertDispatch::gate_up_work(const Mixture& mixture) const {
    Work total;
    for (const Active& active : active_) {
        const FeedForward& expert = mixture.experts[static_cast<size_t>(active.expert)];
        const Work work = product_work({&expert.gate, &expert.up}, active.num_pairs);
        total.bytes += work.bytes;
        total.operations += work.operations;
    }
    return total;
}

Work ExpertDispatch::down_work(const Mixture& mixture) const {
    Work total;
    for (const Active& active : active_) {
        const Work work = product_work({&mixture.experts[static_cast<size_t>(active.expert)].down}, active.num_pairs);
        total.bytes += work.bytes;
        total.operations += work.operations;
    }
    return total;
}

}  // namespace treadle
