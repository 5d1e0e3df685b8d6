// Gemma 1: as Llama, with a scaled embedding and a GELU gate. Files hold norm weights with the one already added.
#include <cmath>

#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.activation = Activation::kGelu;
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kGemma = {"gemma", read, plan_layer};

}  // namespace treadle
