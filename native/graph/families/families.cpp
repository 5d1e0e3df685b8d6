#include "family.h"

namespace treadle {

std::span<const Family* const> families() {
    static constexpr const Family* kFamilies[] = {&kLlama, &kQwen2, &kQwen3};
    return kFamilies;
}

void plan_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm);
    plan.matrix(prefix + "attn_q.weight", config.query_size(), config.hidden_size, layer.query);
    plan.matrix(prefix + "attn_k.weight", config.kv_size(), config.hidden_size, layer.key);
    plan.matrix(prefix + "attn_v.weight", config.kv_size(), config.hidden_size, layer.value);
    plan.matrix(prefix + "attn_output.weight", config.hidden_size, config.query_size(), layer.attention_output);
    plan.optional_vector(prefix + "attn_q.bias", config.query_size(), &layer.query_bias);
    plan.optional_vector(prefix + "attn_k.bias", config.kv_size(), &layer.key_bias);
    plan.optional_vector(prefix + "attn_v.bias", config.kv_size(), &layer.value_bias);
    plan.optional_vector(prefix + "attn_output.bias", config.hidden_size, &layer.attention_output_bias);
}

void plan_head_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "attn_q_norm.weight", config.head_dim, &layer.query_norm);
    plan.vector(prefix + "attn_k_norm.weight", config.head_dim, &layer.key_norm);
}

void plan_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm);
    plan.matrix(prefix + "ffn_gate.weight", config.feed_forward_size, config.hidden_size, layer.gate);
    plan.matrix(prefix + "ffn_up.weight", config.feed_forward_size, config.hidden_size, layer.up);
    plan.matrix(prefix + "ffn_down.weight", config.hidden_size, config.feed_forward_size, layer.down);
}

}  // namespace treadle
