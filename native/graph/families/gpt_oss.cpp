// gpt-oss (OpenAI 2025): a mixture of experts with biases throughout, gates that are clamped before they are activated,
// attention sinks, a sliding window in every other layer, positions stretched by YaRN. What its files call the norm
// after attention is the one before the experts.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.activation = Activation::kClampedSilu;
    read_windows(reader, 2, config);
    read_experts(reader, config.feed_forward_size, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"}) {
        plan.require(prefix + name);
    }
    plan.vector(prefix + "attn_sinks.weight", config.num_heads, &layer.attention_sinks);
    plan.vector(prefix + "post_attention_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_experts(plan, config, prefix, layer);
    plan_expert_biases(plan, config, prefix, layer.mixture);
}

}  // namespace

const Family kGptOss = {"gpt-oss", read, plan_layer};

}  // namespace treadle
