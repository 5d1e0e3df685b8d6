// Qwen3 and Qwen3-VL with a mixture of experts: as the dense ones, the weights of a token's experts add up to one.
// Mellum 2 is the same with windows.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    read_experts(reader, config.feed_forward_size, config);
}

void read_mellum(const ConfigReader& reader, ModelConfig& config) {
    read(reader, config);
    read_unscaled_windows(reader, 4, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_head_norms(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_experts(plan, config, prefix, layer);
}

}  // namespace

const Family kMellum = {"mellum", read_mellum, plan_layer};
const Family kQwen3Moe = {"qwen3moe", read, plan_layer};
const Family kQwen3VlMoe = {"qwen3vlmoe", read, plan_layer};

}  // namespace treadle
