// OLMo 2 and 3: norms only after attention and feed-forward, and over the whole query and key. OLMo 3 has windows in
// three of four layers; their positions are not stretched.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.norms_projections = true;
    read_unscaled_windows(reader, 4, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_projections(plan, config, prefix, layer);
    plan.vector(prefix + "attn_q_norm.weight", config.query_size(), &layer.query_norm);
    plan.vector(prefix + "attn_k_norm.weight", config.kv_size(), &layer.key_norm);
    plan_feed_forward_products(plan, config, prefix, layer);
    plan_post_norms(plan, config, prefix, layer);
}

}  // namespace

const Family kOlmo2 = {"olmo2", read, plan_layer};

}  // namespace treadle
