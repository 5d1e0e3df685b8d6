#include "family.h"

#include "../rope.h"

namespace treadle {

std::span<const Family* const> families() {
    static constexpr const Family* kFamilies[] = {
        &kApertus,  &kArcee,      &kBailingMoe,   &kBailingMoe2,    &kBert,       &kChatGlm,  &kCohere2,
        &kCommandR, &kDeepSeek,   &kDots1,        &kErnie45,        &kErnie45Moe, &kExaone,   &kExaone4,
        &kGemma,    &kGemma2,     &kGemma3,       &kGemmaEmbedding, &kGlm4,       &kGlm4Moe,  &kGptOss,
        &kGranite,  &kGraniteMoe, &kHunyuanDense, &kHunyuanMoe,     &kInternLm2,  &kLfm2,     &kLfm2Moe,
        &kLlama,    &kMellum,     &kMiniCpm,      &kMistral3,       &kModernBert, &kNemotron, &kNomicBert,
        &kOlmo2,    &kOlmoe,      &kPhi3,         &kQwen2,          &kQwen2Moe,   &kQwen2Vl,  &kQwen3,
        &kQwen3Moe, &kQwen3Vl,    &kQwen3VlMoe,   &kSeedOss,        &kSmolLm3,    &kStableLm, &kStarCoder2};
    return kFamilies;
}

void plan_decoder_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    constexpr const char* kOutput = "output.weight";  // absent where the embedding serves for it, too
    plan_norm(plan, config, "output_norm", ends.output_norm);
    if (plan.has(kOutput)) plan.matrix(kOutput, config.vocab_size, config.hidden_size, ends.output);
}

void plan_scores(TensorPlan& plan, const ModelConfig& config, Head& head) {
    constexpr const char* kScores = "cls.output.weight";
    if (!plan.has(kScores)) return;
    head.means = true;
    if (plan.has("cls.weight")) {
        if (head.activation == Head::Activation::kNone) head.activation = Head::Activation::kTanh;
        plan.matrix("cls.weight", config.hidden_size, config.hidden_size, head.first);
        plan.optional_vector("cls.bias", config.hidden_size, &head.first_bias);
        plan.optional_vector("cls.norm.weight", config.hidden_size, &head.norm.weight);
    }
    const std::vector<uint64_t>& shape = plan.require(kScores).shape;
    const auto num_scores = static_cast<int64_t>(shape.size() == 2 ? shape[1] : 1);  // another shape is refused below
    plan.matrix(kScores, num_scores, config.hidden_size, head.second);
    plan.optional_vector("cls.output.bias", num_scores, &head.second_bias);
}

void plan_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_norm(plan, config, prefix + "attn_norm", layer.attention_norm);
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
    plan_norm(plan, config, prefix + "ffn_norm", layer.feed_forward_norm);
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

void plan_ungated_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                               LayerWeights& layer) {
    FeedForward& weights = layer.feed_forward;
    plan.matrix(prefix + "ffn_up.weight", config.feed_forward_size, config.hidden_size, weights.up);
    plan.optional_vector(prefix + "ffn_up.bias", config.feed_forward_size, &weights.up_bias);
    plan.matrix(prefix + "ffn_down.weight", config.hidden_size, config.feed_forward_size, weights.down);
    plan.optional_vector(prefix + "ffn_down.bias", config.hidden_size, &weights.down_bias);
}

void plan_feed_forward_products(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                                LayerWeights& layer) {
    plan.matrix(prefix + "ffn_gate.weight", config.feed_forward_size, config.hidden_size, layer.feed_forward.gate);
    plan.matrix(prefix + "ffn_up.weight", config.feed_forward_size, config.hidden_size, layer.feed_forward.up);
    plan.matrix(prefix + "ffn_down.weight", config.hidden_size, config.feed_forward_size, layer.feed_forward.down);
}

void read_layer_norms(const ConfigReader& reader, double epsilon, ModelConfig& config) {
    config.centres_norms = true;
    config.norm_epsilon = static_cast<float>(reader.real_or("attention.layer_norm_epsilon", epsilon, 0.0, 1.0));
}

void read_unscaled_windows(const ConfigReader& reader, int32_t default_period, ModelConfig& config) {
    if (!read_windows(reader, default_period, config)) return;
    const auto rotary_dims = static_cast<int32_t>(2 * config.ropes[0].frequencies.size());
    config.ropes.push_back(plain_rope(reader.real_or("rope.freq_base", 10000.0, 1.0 + 1e-6, 1e12), rotary_dims));
    for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 1 : 0;
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
