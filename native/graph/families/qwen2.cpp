// Qwen2 and Qwen2.5: as Llama, with biases on query, key and value. Qwen2-VL and Qwen2.5-VL are the same for text,
// whose positions in time, height and width are one.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) { config.rope_pairing = RopePairing::kHalves; }

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) plan.require(prefix + name);
    plan_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kQwen2 = {"qwen2", read, plan_layer};
const Family kQwen2Vl = {"qwen2vl", read, plan_layer};

}  // namespace treadle
