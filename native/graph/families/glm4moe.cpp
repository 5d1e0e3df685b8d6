// GLM-4.5 and its kin: biases, norms of heads in some, positions that turn a part of a head, small experts chosen by
// sigmoids and a bias beside ones for all tokens, the first layers dense. What files call the norm after attention is
// the one before the feed-forward.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    read_experts(reader, config.feed_forward_size, config);
    read_shared_experts(reader, config);
    config.experts.sigmoid = true;
    config.experts.normalise = false;
    read_expert_weights(reader, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    if (plan.has(prefix + "attn_q_norm.weight")) plan_head_norms(plan, config, prefix, layer);
    plan.vector(prefix + "post_attention_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_dense_or_experts(plan, config, prefix, layer);
}

}  // namespace

const Family kGlm4Moe = {"glm4moe", read, plan_layer};

}  // namespace treadle
