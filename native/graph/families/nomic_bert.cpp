// Nomic's BERT (Nussbaum et al. 2024): as BERT, with rotary positions and a SiLU gate, and without biases of products.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    read_encoder(reader, config);
    config.activation = Activation::kSilu;
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_encoder_attention(plan, config, prefix, layer);
    plan_feed_forward_products(plan, config, prefix, layer);
    plan_residual_norms(plan, config, prefix, layer);
}

void plan_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    plan_token_types(plan, config, ends);
    plan_norm(plan, config, "token_embd_norm", ends.embedding_norm);
}

}  // namespace

const Family kNomicBert = {"nomic-bert", read, plan_layer, plan_ends};

}  // namespace treadle
