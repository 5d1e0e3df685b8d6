// Which experts the tokens of a step go through, and in which order their work is done.
//
// A pair is one token at one of its experts. Pairs are ordered by expert, so that an expert's tokens stand together and
// its weights are read once a step; what comes out goes back to each token in the token's own order of experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "step_timers.h"
#include "treadle/model.h"

namespace treadle {

class ExpertDispatch {
 public:
    // The pairs of one expert, and where its share of the common work begins.
    struct Active {
        int32_t expert;  // index into Mixture::experts
        int64_t first_pair, num_pairs;
        int64_t first_gated;                       // value of its first pair between up and down
        int64_t first_gate_panel, end_gate_panel;  // in the common numbering of all active experts
        int64_t first_down_panel, end_down_panel;
        int64_t first_tile, end_tile;
    };

    ExpertDispatch(const ModelConfig& config, int64_t max_tokens);

    bool is_needed() const { return config_.experts.count > 0; }
    int64_t max_pairs() const { return max_tokens_ * num_slots_; }
    int64_t max_gated() const;  // values of all pairs between up and down

    float* router_logits(int64_t token) { return logits_.data() + token * config_.experts.count; }
    // Takes the best experts of a token by its router logits; a shared one follows with its own weight. The bias is
    // that of Mixture.
    void choose(int64_t token, const float* choice_bias, float shared_weight);
    // Orders the pairs of so many tokens once all have chosen.
    void order(const Mixture& mixture, int64_t num_tokens);

    std::span<const Active> active() const { return active_; }
    int64_t num_pairs() const { return num_pairs_; }
    int64_t token_of(int64_t pair) const { return tokens_[static_cast<size_t>(pair)]; }
    int64_t num_slots() const { return num_slots_; }
    // The pair and the weight of a token's expert number `slot`.
    int64_t pair_of(int64_t token, int64_t slot) const {
        return pairs_[static_cast<size_t>(token * num_slots_ + slot)];
    }
    float weight_of(int64_t token, int64_t slot) const {
        return weights_[static_cast<size_t>(token * num_slots_ + slot)];
    }

    Work gate_up_work(const Mixture& mixture) const;
    Work down_work(const Mixture& mixture) const;

 private:
    // What experts are chosen by where that is not the logits themselves: weights with a bias, in the best groups.
    const float* rank(int64_t token, const float* choice_bias, float top, float total);
    void drop_groups(float* ranks) const;
    void take_best(const float* ranks, int32_t* best) const;
    float weight(float logit, float top, float total) const;

    const ModelConfig& config_;
    int64_t max_tokens_;
    int64_t num_slots_;  // experts of each token, the shared one included
    int64_t num_pairs_ = 0;
    std::vector<float> logits_;    // [tokens][experts]
    std::vector<float> ranks_;     // the same
    std::vector<int32_t> chosen_;  // [tokens][slots]
    std::vector<float> weights_;   // [tokens][slots]
    std::vector<int64_t> pairs_;   // [tokens][slots]
    std::vector<int64_t> tokens_;  // [pairs]
    std::vector<int64_t> next_;    // [experts]: how many pairs, then where the next one goes
    std::vector<Active> active_;
};

}  // namespace treadle
