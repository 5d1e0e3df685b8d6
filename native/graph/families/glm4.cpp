// GLM-4 (0414): as Llama, with norms after attention and feed-forward too, one tensor for gate and up, and positions
// that turn half of a head. GLM-4 9B of 2024 and ChatGLM 3 have no such norms, and one tensor for query, key and value.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig&) {}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_fused_feed_forward(plan, config, prefix, layer);
    plan_post_norms(plan, config, prefix, layer);
}

void plan_chat_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan.vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm.weight);
    plan_encoder_attention(plan, config, prefix, layer);
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_fused_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kChatGlm = {"chatglm", read, plan_chat_layer};
const Family kGlm4 = {"glm4", read, plan_layer};

}  // namespace treadle
