// Gemma 3, text (arXiv:2503.19786): as Gemma 2, with norms of heads in the stead of the soft cap of attention, and five
// layers with a window, whose positions turn by a base of their own, to one without.
#include <cmath>

#include "../rope.h"
#include "family.h"

namespace treadle {
namespace {

constexpr int32_t kLayersOf27B = 62;

void read(const ConfigReader& reader, ModelConfig& config) {
    kGemma.read(reader, config);
    config.logit_cap = reader.soft_cap("final_logit_softcapping", 0.0);
    if (config.num_layers == kLayersOf27B) {
        config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.hidden_size / config.num_heads));
    }
    if (!read_windows(reader, 6, config)) return;
    const auto rotary_dims = static_cast<int32_t>(2 * config.ropes[0].frequencies.size());
    config.ropes.push_back(plain_rope(reader.real_or("rope.freq_base_swa", 10000.0, 1.0 + 1e-6, 1e12), rotary_dims));
    for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_head_norms(plan, config, prefix, layer);
    plan_feed_forward(plan, config, prefix, layer);
    plan_post_norms(plan, config, prefix, layer);
}

}  // namespace

const Family kGemma3 = {"gemma3", read, plan_layer};

}  // namespace treadle
