// Gemma 2 (arXiv:2408.00118): as Gemma 1, with norms after attention and feed-forward too, soft caps, and a sliding
// window in every other layer.
#include <cmath>

#include "family.h"

namespace treadle {
namespace {

constexpr int32_t kLayersOf27B = 46;

void read(const ConfigReader& reader, ModelConfig& config) {
    kGemma.read(reader, config);
    read_windows(reader, 2, config);
    config.attention_cap = reader.soft_cap("attn_logit_softcapping", 50.0);
    config.logit_cap = reader.soft_cap("final_logit_softcapping", 30.0);
    // The largest model scales queries by what its heads would measure if they filled the hidden size.
    if (config.num_layers == kLayersOf27B) {
        config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.hidden_size / config.num_heads));
    }
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_feed_forward(plan, config, prefix, layer);
    plan_post_norms(plan, config, prefix, layer);
}

}  // namespace

const Family kGemma2 = {"gemma2", read, plan_layer};

}  // namespace treadle
