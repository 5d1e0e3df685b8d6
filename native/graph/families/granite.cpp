// Granite 3 and 4 without recurrent layers, and MiniCPM: as Llama, with scales for the embedding, attention, what
// layers add, and the logits. Granite also comes with experts, and one more in some, which every token goes through.
#include "../refuse.h"
#include "family.h"

namespace treadle {
namespace {

float scale(const ConfigReader& reader, const char* name) {
    return static_cast<float>(reader.real_or(name, 1.0, 1e-6, 1e6));
}

void read(const ConfigReader& reader, ModelConfig& config) {
    config.embedding_scale = scale(reader, "embedding_scale");
    config.residual_scale = scale(reader, "residual_scale");
    config.logit_scale = 1.0f / scale(reader, "logit_scale");  // files hold the divisor
    // This is how converters say that no layer knows positions.
    if (!reader.file().get_bool(reader.key("rope.scaling.finetuned")).value_or(true)) {
        for (LayerConfig& layer : config.layers) layer.rope = kNoRope;
    }
}

void read_mixture(const ConfigReader& reader, ModelConfig& config) {
    read(reader, config);
    read_experts(reader, config.feed_forward_size, config);
    config.experts.shared_feed_forward_size = reader.integer_or("expert_shared_feed_forward_length", 0, 0, 1u << 20);
}

void plan_mixture_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_experts(plan, config, prefix, layer);
}

// Older files leave the scales out, and what they leave out is not 1.
void read_minicpm(const ConfigReader& reader, ModelConfig& config) {
    for (const char* name : {"embedding_scale", "residual_scale", "logit_scale"}) {
        if (!reader.has(name)) refuse(reader.file(), "the key " + reader.key(name) + " is missing");
    }
    read(reader, config);
}

}  // namespace

const Family kGranite = {"granite", read, plan_llama_layer};
const Family kGraniteMoe = {"granitemoe", read_mixture, plan_mixture_layer};
const Family kMiniCpm = {"minicpm", read_minicpm, plan_llama_layer};

}  // namespace treadle
