// Qwen1.5 and Qwen2 with a mixture of experts, and one more that every token goes through, weighed by a gate of its
// own. The weights of the others are shares of all experts, so they add up to less than one.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    read_experts(reader, config.feed_forward_size / std::max(1, reader.integer_or("expert_used_count", 1, 0, 1024)),
                 config);
    config.experts.normalise = false;
    config.experts.shared_feed_forward_size =
        reader.integer_or("expert_shared_feed_forward_length", config.feed_forward_size, 1, 1u << 20);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    for (const char* name : {"attn_q.bias", "attn_k.bias", "attn_v.bias"}) plan.require(prefix + name);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_experts(plan, config, prefix, layer);
    plan.require(prefix + "ffn_gate_inp_shexp.weight");
}

}  // namespace

const Family kQwen2Moe = {"qwen2moe", read, plan_layer};

}  // namespace treadle
