// Qwen3, dense: as Llama, with a norm over each query and key head. Qwen3-VL is the same for text, see Qwen2.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) { config.rope_pairing = RopePairing::kHalves; }

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_head_norms(plan, config, prefix, layer);
    plan_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kQwen3 = {"qwen3", read, plan_layer};
const Family kQwen3Vl = {"qwen3vl", read, plan_layer};

}  // namespace treadle
