// Llama 1 to 3, Mistral, SmolLM2, TinyLlama and what else converters write as `llama`: RMS norm, rotary positions,
// grouped-query attention, gated SiLU feed-forward (Touvron et al. 2023). Converters permute the rows of query and key
// so that neighbours form the rotary pairs.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig&) {}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kLlama = {"llama", read, plan_layer};

}  // namespace treadle
