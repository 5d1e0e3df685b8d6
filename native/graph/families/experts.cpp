// The parts of families that have a mixture of experts instead of one feed-forward.
#include "../refuse.h"
#include "family.h"

namespace treadle {
namespace {

constexpr uint64_t kMaxExperts = 1024;
constexpr uint64_t kMaxSize = 1u << 20;

using Part = Matrix FeedForward::*;

// One tensor of all experts, or one for each in files of the first converters.
void plan_part(TensorPlan& plan, const std::string& prefix, const char* name, int64_t rows, int64_t columns, Part part,
               std::span<FeedForward> experts) {
    if (plan.has(prefix + name + ".0.weight")) {
        for (size_t i = 0; i < experts.size(); ++i) {
            plan.matrix(prefix + name + "." + std::to_string(i) + ".weight", rows, columns, experts[i].*part);
        }
        return;
    }
    std::vector<Matrix*> targets;
    for (FeedForward& expert : experts) targets.push_back(&(expert.*part));
    plan.stacked_matrices(prefix + name + "_exps.weight", rows, columns, targets);
}

void plan_shared_expert(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, Mixture& mixture) {
    const int64_t size = config.experts.shared_feed_forward_size;
    FeedForward& shared = mixture.experts.back();
    plan.matrix(prefix + "ffn_gate_shexp.weight", size, config.hidden_size, shared.gate);
    plan.matrix(prefix + "ffn_up_shexp.weight", size, config.hidden_size, shared.up);
    plan.matrix(prefix + "ffn_down_shexp.weight", config.hidden_size, size, shared.down);
    plan.optional_vector(prefix + "ffn_gate_inp_shexp.weight", config.hidden_size, &mixture.shared_gate);
}

void read_groups(const ConfigReader& reader, ExpertConfig& experts) {
    constexpr const char* kGroups = "expert_group_count";
    experts.num_groups = std::max(1, reader.integer_or(kGroups, 1, 0, 64));
    experts.groups_used = std::max(1, reader.integer_or("expert_group_used_count", experts.num_groups, 0,
                                                        static_cast<uint64_t>(experts.num_groups)));
    const int32_t size = experts.count / experts.num_groups;
    if (size * experts.num_groups != experts.count || size * experts.groups_used < experts.used) {
        refuse(reader.file(), reader.key(kGroups) + " is " + std::to_string(experts.num_groups) + ", of which " +
                                  std::to_string(experts.groups_used) + " are used, expected groups of one size for " +
                                  std::to_string(experts.count) + " experts, of which " + std::to_string(experts.used) +
                                  " are used");
    }
}

}  // namespace

void read_experts(const ConfigReader& reader, int32_t size, ModelConfig& config) {
    ExpertConfig& experts = config.experts;
    experts.count = reader.integer("expert_count", 1, kMaxExperts);
    experts.used = reader.integer("expert_used_count", 1, static_cast<uint64_t>(experts.count));
    experts.feed_forward_size = reader.integer_or("expert_feed_forward_length", size, 1, kMaxSize);
    read_groups(reader, experts);
}

void read_expert_weights(const ConfigReader& reader, ModelConfig& config) {
    constexpr int32_t kShares = 1, kSigmoids = 2;
    ExpertConfig& experts = config.experts;
    const int32_t kind = reader.integer_or("expert_gating_func", experts.sigmoid ? kSigmoids : kShares, 0, 1u << 20);
    if (kind != kShares && kind != kSigmoids) {
        refuse_unsupported(reader.file(), reader.key("expert_gating_func") + " is " + std::to_string(kind) +
                                              ", expected 1 (softmax) or 2 (sigmoid)");
    }
    experts.sigmoid = kind == kSigmoids;
    experts.normalise = reader.file().get_bool(reader.key("expert_weights_norm")).value_or(experts.normalise);
    const auto scale = static_cast<float>(reader.real_or("expert_weights_scale", 1.0, 0.0, 1e3));
    experts.scale = scale == 0.0f ? 1.0f : scale;  // this is how some converters say that there is none
}

void read_shared_experts(const ConfigReader& reader, ModelConfig& config) {
    const int32_t count = reader.integer_or("expert_shared_count", 0, 0, 64);
    const int32_t size =
        reader.integer_or("expert_shared_feed_forward_length", config.experts.feed_forward_size, 1, kMaxSize);
    config.experts.shared_feed_forward_size = count * size;  // they stand side by side in one tensor
}

void plan_dense_or_experts(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                           LayerWeights& layer) {
    if (!plan.has(prefix + "ffn_gate_inp.weight")) return plan_feed_forward_products(plan, config, prefix, layer);
    plan_experts(plan, config, prefix, layer);
    plan.optional_vector(prefix + "exp_probs_b.bias", config.experts.count, &layer.mixture.choice_bias);
}

void plan_expert_biases(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, Mixture& mixture) {
    std::vector<const float**> gate, up, down;
    for (FeedForward& expert : mixture.experts) {
        gate.push_back(&expert.gate_bias);
        up.push_back(&expert.up_bias);
        down.push_back(&expert.down_bias);
    }
    plan.vector(prefix + "ffn_gate_inp.bias", config.experts.count, &mixture.router_bias);
    plan.stacked_vectors(prefix + "ffn_gate_exps.bias", config.experts.feed_forward_size, gate);
    plan.stacked_vectors(prefix + "ffn_up_exps.bias", config.experts.feed_forward_size, up);
    plan.stacked_vectors(prefix + "ffn_down_exps.bias", config.hidden_size, down);
}

void plan_experts(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    const auto count = static_cast<size_t>(config.experts.count);
    const int64_t size = config.experts.feed_forward_size, hidden_size = config.hidden_size;
    const bool has_shared = config.experts.shared_feed_forward_size > 0;
    Mixture& mixture = layer.mixture;
    mixture.experts.resize(count + (has_shared ? 1 : 0));
    const std::span<FeedForward> routed(mixture.experts.data(), count);
    plan.matrix(prefix + "ffn_gate_inp.weight", config.experts.count, hidden_size, mixture.router);
    plan_part(plan, prefix, "ffn_gate", size, hidden_size, &FeedForward::gate, routed);
    plan_part(plan, prefix, "ffn_up", size, hidden_size, &FeedForward::up, routed);
    plan_part(plan, prefix, "ffn_down", hidden_size, size, &FeedForward::down, routed);
    if (has_shared) plan_shared_expert(plan, config, prefix, mixture);
}

}  // namespace treadle
