// Ling 2 and Ring 2 (Bailing), and dots.llm1: norms of heads, small experts chosen by sigmoids and a bias, in the best
// groups, beside ones for all tokens; the first layers are dense. Bailing has one tensor for query, key and value.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    read_experts(reader, config.feed_forward_size, config);
    read_shared_experts(reader, config);
    config.experts.normalise = false;
    read_expert_weights(reader, config);
}

void plan_parts(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_head_norms(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_dense_or_experts(plan, config, prefix, layer);
}

void plan_bailing_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm.weight);
    plan_encoder_attention(plan, config, prefix, layer);
    plan_parts(plan, config, prefix, layer);
}

void plan_dots_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_parts(plan, config, prefix, layer);
}

}  // namespace

const Family kBailingMoe2 = {"bailingmoe2", read, plan_bailing_layer};
const Family kDots1 = {"dots1", read, plan_dots_layer};

}  // namespace treadle
