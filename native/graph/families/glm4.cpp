// GLM-4 (0414): as Llama, with norms after attention and feed-forward too, one tensor for gate and up, and positions
// that turn half of a head.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig&) {}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm);
    plan_fused_feed_forward(plan, config, prefix, layer);
    plan_post_norms(plan, config, prefix, layer);
}

}  // namespace

const Family kGlm4 = {"glm4", read, plan_layer};

}  // namespace treadle
