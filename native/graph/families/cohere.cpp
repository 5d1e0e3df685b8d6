// Command R and Aya (`command-r`), Command R7B and Command A (`cohere2`): attention and feed-forward read the same
// norm, which takes away the mean, and both are added; logits have a scale. Cohere 2 has windows, and positions only
// there.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    read_layer_norms(reader, 1e-5, config);
    config.parallel_halves = true;
    config.logit_scale = static_cast<float>(reader.real_or("logit_scale", 1.0, 1e-6, 1e6));
}

void read_cohere2(const ConfigReader& reader, ModelConfig& config) {
    read(reader, config);
    read_windows(reader, 4, config);
    for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 0 : kNoRope;
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_norm(plan, config, prefix + "attn_norm", layer.feed_forward_norm);
    plan_feed_forward_products(plan, config, prefix, layer);
}

}  // namespace

const Family kCohere2 = {"cohere2", read_cohere2, plan_layer};
const Family kCommandR = {"command-r", read, plan_layer};

}  // namespace treadle
