// The parts of families that turn whole texts into states instead of continuing them.
#include "family.h"

namespace treadle {

void read_encoder(const ConfigReader& reader, ModelConfig& config) {
    config.causal = false;
    read_layer_norms(reader, 1e-12, config);
    config.activation = Activation::kGelu;
    config.rope_pairing = RopePairing::kHalves;
}

void plan_norm(TensorPlan& plan, const ModelConfig& config, const std::string& name, Norm& norm) {
    plan.vector(name + ".weight", config.hidden_size, &norm.weight);
    plan.optional_vector(name + ".bias", config.hidden_size, &norm.bias);
}

void plan_encoder_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                            LayerWeights& layer) {
    const std::string fused = prefix + "attn_qkv";
    if (!plan.has(fused + ".weight")) return plan_projections(plan, config, prefix, layer);
    const int64_t query_size = config.query_size(), kv_size = config.kv_size();
    plan.fused_matrix(fused + ".weight", config.hidden_size,
                      {{query_size, layer.query}, {kv_size, layer.key}, {kv_size, layer.value}});
    if (plan.has(fused + ".bias")) {
        plan.fused_vector(fused + ".bias",
                          {{query_size, &layer.query_bias}, {kv_size, &layer.key_bias}, {kv_size, &layer.value_bias}});
    }
    plan.matrix(prefix + "attn_output.weight", config.hidden_size, query_size, layer.attention_output);
    plan.optional_vector(prefix + "attn_output.bias", config.hidden_size, &layer.attention_output_bias);
}

void plan_residual_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_norm(plan, config, prefix + "attn_output_norm", layer.residual_attention_norm);
    plan_norm(plan, config, prefix + "layer_output_norm", layer.residual_feed_forward_norm);
}

void plan_token_types(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    constexpr const char* kTypes = "token_types.weight";
    if (!plan.has(kTypes)) return;
    const std::vector<uint64_t>& shape = plan.require(kTypes).shape;
    const uint64_t count = shape.size() == 2 ? shape[1] : 1;  // another shape is refused below
    plan.matrix(kTypes, static_cast<int64_t>(count), config.hidden_size, ends.token_types);
}

}  // namespace treadle
