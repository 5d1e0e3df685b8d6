// BERT (Devlin et al. 2018) and its many descendants, such as MiniLM, BGE, E5 and GTE: learnt positions, a norm of the
// residual after attention and after the feed-forward, which has no gate, and biases throughout.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    read_encoder(reader, config);
    config.ropes.clear();
    for (LayerConfig& layer : config.layers) layer.rope = kNoRope;
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_encoder_attention(plan, config, prefix, layer);
    plan_ungated_feed_forward(plan, config, prefix, layer);
    plan_residual_norms(plan, config, prefix, layer);
}

void plan_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    plan.matrix("position_embd.weight", config.context_length, config.hidden_size, ends.positions);
    plan_token_types(plan, config, ends);
    plan_norm(plan, config, "token_embd_norm", ends.embedding_norm);
}

}  // namespace

const Family kBert = {"bert", read, plan_layer, plan_ends};

}  // namespace treadle
