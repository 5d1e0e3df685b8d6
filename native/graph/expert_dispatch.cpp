#include "expert_dispatch.h"

#include <algorithm>
#include <limits>

#include "activations.h"

namespace treadle {
namespace {

constexpr float kLeastWeight = 0x1p-14f;  // of a token's experts together, before they are made to add up to one

}  // namespace

ExpertDispatch::ExpertDispatch(const ModelConfig& config, int64_t max_tokens)
    : config_(config),
      max_tokens_(config.experts.count > 0 ? max_tokens : 0),
      num_slots_(config.experts.used + (config.experts.shared_feed_forward_size > 0 ? 1 : 0)) {
    const auto pairs = static_cast<size_t>(max_pairs());
    const auto experts = static_cast<size_t>(config.experts.count) + 1;
    logits_.resize(static_cast<size_t>(max_tokens_ * config.experts.count));
    ranks_.resize(logits_.size());
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

float ExpertDispatch::weight(float logit, float top, float total) const {
    return config_.experts.sigmoid ? 1.0f / (1.0f + exp_f32(-logit)) : exp_f32(logit - top) / total;
}

void ExpertDispatch::take_best(const float* ranks, int32_t* best) const {
    const ExpertConfig& experts = config_.experts;
    for (int32_t expert = 0; expert < experts.count; ++expert) {
        int32_t place = std::min(expert, experts.used - 1);
        if (expert >= experts.used && !(ranks[expert] > ranks[best[place]])) continue;
        for (; place > 0 && ranks[expert] > ranks[best[place - 1]]; --place) best[place] = best[place - 1];
        best[place] = expert;
    }
}

void ExpertDispatch::drop_groups(float* ranks) const {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    const ExpertConfig& experts = config_.experts;
    const int32_t size = experts.count / experts.num_groups;
    const auto better = [&](int32_t group, int32_t than) {
        const auto of = [&](int32_t g) {
            float first = kLowest, second = kLowest;
            for (const float rank : std::span(ranks + g * size, static_cast<size_t>(size))) {
                second = std::max(second, std::min(first, rank));
                first = std::max(first, rank);
            }
            return first + second;
        };
        return of(group) > of(than) || (of(group) == of(than) && group < than);
    };
    uint64_t dropped = 0;  // decided before the first rank is overwritten
    for (int32_t group = 0; group < experts.num_groups; ++group) {
        int32_t num_better = 0;
        for (int32_t other = 0; other < experts.num_groups; ++other) num_better += better(other, group) ? 1 : 0;
        if (num_better >= experts.groups_used) dropped |= uint64_t{1} << group;
    }
    for (int32_t expert = 0; expert < experts.count; ++expert) {
        if (dropped >> (expert / size) & 1) ranks[expert] = kLowest;
    }
}

const float* ExpertDispatch::rank(int64_t token, const float* choice_bias, float top, float total) {
    const ExpertConfig& experts = config_.experts;
    const float* logits = router_logits(token);
    if (choice_bias == nullptr && experts.num_groups == 1) return logits;  // weights are in their order
    float* ranks = ranks_.data() + token * experts.count;
    for (int32_t expert = 0; expert < experts.count; ++expert) {
        ranks[expert] = weight(logits[expert], top, total) + (choice_bias ? choice_bias[expert] : 0.0f);
    }
    if (experts.num_groups > 1) drop_groups(ranks);
    return ranks;
}

void ExpertDispatch::choose(int64_t token, const float* choice_bias, float shared_weight) {
    const ExpertConfig& experts = config_.experts;
    const float* logits = router_logits(token);
    float* weights = weights_.data() + token * num_slots_;
    int32_t* best = chosen_.data() + token * num_slots_;  // the largest first; of equals the first one
    const float top = *std::max_element(logits, logits + experts.count);
    float total = 1.0f;  // where the weights are made to add up to one, and nothing is added to them, any will do
    if (!experts.sigmoid && (!experts.normalise || choice_bias != nullptr)) {
        total = 0.0f;
        for (int32_t expert = 0; expert < experts.count; ++expert) total += exp_f32(logits[expert] - top);
    }
    take_best(rank(token, choice_bias, top, total), best);
    float sum = 0.0f;
    for (int32_t slot = 0; slot < experts.used; ++slot) {
        weights[slot] = weight(logits[best[slot]], top, total);
        sum += weights[slot];
    }
    const float divisor = experts.normalise ? std::max(sum, kLeastWeight) : 1.0f;
    for (int32_t slot = 0; slot < experts.used; ++slot) weights[slot] = weights[slot] / divisor * experts.scale;
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
