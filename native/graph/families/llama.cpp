// Llama 1 to 3, Mistral, Mixtral, SmolLM2, TinyLlama and what else converters write as `llama`: RMS norm, rotary
// positions, grouped-query attention, gated SiLU feed-forward (Touvron et al. 2023), or experts of that kind (Jiang et
// al. 2024). Converters permute the rows of query and key so that neighbours form the rotary pairs. InternLM2 and ERNIE
// 4.5 are the same under other names.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    read_windows(reader, 1, config);  // Mistral 7B had them in all layers
    if (reader.integer_or("expert_count", 0, 0, 1u << 20) != 0) read_experts(reader, config.feed_forward_size, config);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    if (config.experts.count == 0) return plan_llama_layer(plan, config, prefix, layer);
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_experts(plan, config, prefix, layer);
}

}  // namespace

const Family kLlama = {"llama", read, plan_layer};
const Family kInternLm2 = {"internlm2", read, plan_llama_layer};
const Family kErnie45 = {"ernie4_5", read, plan_llama_layer};

}  // namespace treadle
