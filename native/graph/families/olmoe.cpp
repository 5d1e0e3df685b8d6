// OLMoE (Muennighoff et al. 2024): a mixture of small experts, weighed by their shares of all of them, with norms over
// the whole query and key.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.norms_projections = true;
    read_experts(reader, config.feed_forward_size, config);
    config.experts.normalise = false;
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "attn_q_norm.weight", config.query_size(), &layer.query_norm);
    plan.vector(prefix + "attn_k_norm.weight", config.kv_size(), &layer.key_norm);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_experts(plan, config, prefix, layer);
}

}  // namespace

const Family kOlmoe = {"olmoe", read, plan_layer};

}  // namespace treadle
