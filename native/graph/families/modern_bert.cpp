// ModernBERT (Warner et al. 2024): norms before attention and feed-forward, none before the first attention, no biases,
// a GELU gate in one tensor with what it gates, rotary positions, and a window in two layers of three, whose positions
// turn by a base of their own.
#include "../refuse.h"
#include "../rope.h"
#include "family.h"

namespace treadle {
namespace {

constexpr size_t kPeriod = 3;

void read(const ConfigReader& reader, ModelConfig& config) {
    read_encoder(reader, config);
    const std::string_view activation = reader.file().get_string(reader.key("hidden_activation")).value_or("gelu");
    if (activation == "silu") {
        config.activation = Activation::kSilu;
    } else if (activation != "gelu") {
        refuse_unsupported(reader.file(),
                           reader.key("hidden_activation") + " is " + quoted(activation) + ", expected gelu or silu");
    }
    const int32_t window = reader.integer_or("attention.sliding_window", 0, 0, 1u << 30);
    if (window == 0) return;
    const auto rotary_dims = static_cast<int32_t>(2 * config.ropes[0].frequencies.size());
    config.ropes.push_back(plain_rope(reader.real_or("rope.freq_base_swa", 10000.0, 1.0 + 1e-6, 1e12), rotary_dims));
    for (size_t i = 0; i < config.layers.size(); ++i) {
        if (i % kPeriod != 0) config.layers[i] = {1, window};
    }
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.optional_vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm.weight);
    plan_encoder_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_fused_feed_forward(plan, config, prefix, layer);
}

void plan_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    plan_norm(plan, config, "token_embd_norm", ends.embedding_norm);
    plan.vector("output_norm.weight", config.hidden_size, &ends.output_norm.weight);
    ends.head.activation = Head::Activation::kGelu;
}

}  // namespace

const Family kModernBert = {"modern-bert", read, plan_layer, plan_ends};

}  // namespace treadle
