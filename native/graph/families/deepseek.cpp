// DeepSeek's first mixture of experts (Dai et al. 2024) and Ling 1.5 (Bailing): small experts beside ones for all
// tokens, and the first layers dense. The weights of DeepSeek's experts are shares of all of them.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    read_experts(reader, config.feed_forward_size, config);
    read_shared_experts(reader, config);
    config.experts.normalise = false;
    read_expert_weights(reader, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_dense_or_experts(plan, config, prefix, layer);
}

}  // namespace

const Family kDeepSeek = {"deepseek", read, plan_layer};
const Family kBailingMoe = {"bailingmoe", read, plan_layer};

}  // namespace treadle
