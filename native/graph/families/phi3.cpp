// Phi-3, Phi-3.5 and Phi-4: as Llama, with one tensor for query, key and value and one for gate and up, positions that
// may turn a part of a head only, and factors for short and for long contexts.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    read_windows(reader, 1, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm.weight);
    plan.fused_matrix(
        prefix + "attn_qkv.weight", config.hidden_size,
        {{config.query_size(), layer.query}, {config.kv_size(), layer.key}, {config.kv_size(), layer.value}});
    plan.matrix(prefix + "attn_output.weight", config.hidden_size, config.query_size(), layer.attention_output);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_fused_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kPhi3 = {"phi3", read, plan_layer};

}  // namespace treadle
