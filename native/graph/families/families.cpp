#include "family.h"

#include "../refuse.h"

namespace treadle {

std::span<const Family* const> families() {
    static constexpr const Family* kFamilies[] = {
        &kBailingMoe, &kBailingMoe2, &kBert,     &kDeepSeek,   &kDots1,        &kErnie45,        &kErnie45Moe,
        &kExaone,     &kExaone4,     &kGemma,    &kGemma2,     &kGemma3,       &kGemmaEmbedding, &kGlm4,
        &kGlm4Moe,    &kGptOss,      &kGranite,  &kGraniteMoe, &kHunyuanDense, &kHunyuanMoe,     &kInternLm2,
        &kLlama,      &kMiniCpm,     &kMistral3, &kModernBert, &kNomicBert,    &kOlmo2,          &kOlmoe,
        &kPhi3,       &kQwen2,       &kQwen2Moe, &kQwen2Vl,    &kQwen3,        &kQwen3Moe,       &kQwen3Vl,
        &kQwen3VlMoe, &kSeedOss,     &kSmolLm3};
    return kFamilies;
}

void plan_decoder_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    constexpr const char* kOutput = "output.weight";  // absent where the embedding serves for it, too
    plan.vector("output_norm.weight", config.hidden_size, &ends.output_norm);
    if (plan.has(kOutput)) plan.matrix(kOutput, config.vocab_size, config.hidden_size, ends.output);
}

void plan_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm);
    plan_projections(plan, config, prefix, layer);
}

void plan_projections(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
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

void plan_post_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "post_attention_norm.weight", config.hidden_size, &layer.post_attention_norm);
    plan.vector(prefix + "post_ffw_norm.weight", config.hidden_size, &layer.post_feed_forward_norm);
}

void plan_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm);
    plan_feed_forward_products(plan, config, prefix, layer);
}

void plan_llama_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_feed_forward(plan, config, prefix, layer);
}

void plan_fused_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                             LayerWeights& layer) {
    plan.fused_matrix(
        prefix + "ffn_up.weight", config.hidden_size,
        {{config.feed_forward_size, layer.feed_forward.gate}, {config.feed_forward_size, layer.feed_forward.up}});
    plan.matrix(prefix + "ffn_down.weight", config.hidden_size, config.feed_forward_size, layer.feed_forward.down);
}

void plan_feed_forward_products(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                                LayerWeights& layer) {
    plan.matrix(prefix + "ffn_gate.weight", config.feed_forward_size, config.hidden_size, layer.feed_forward.gate);
    plan.matrix(prefix + "ffn_up.weight", config.feed_forward_size, config.hidden_size, layer.feed_forward.up);
    plan.matrix(prefix + "ffn_down.weight", config.hidden_size, config.feed_forward_size, layer.feed_forward.down);
}

bool read_windows(const ConfigReader& reader, int32_t default_period, ModelConfig& config) {
    const int32_t window = reader.integer_or("attention.sliding_window", 0, 0, 1u << 30);
    if (window == 0) return false;
    const char* pattern = "attention.sliding_window_pattern";
    const std::vector<bool> listed = reader.flags(pattern, config.layers.size());
    const int32_t period = listed.empty() ? reader.integer_or(pattern, default_period, 1, 512) : 0;
    for (size_t i = 0; i < config.layers.size(); ++i) {
        const bool windowed = listed.empty() ? period == 1 || (i + 1) % static_cast<size_t>(period) != 0 : listed[i];
        if (windowed) config.layers[i].window = window;
    }
    return true;
}

}  // namespace treadle
