// StarCoder 2 (Lozhkov et al. 2024), Nemotron 3 and Minitron: norms that take away the mean, biases, and no gate, with
// GELU or with a squared ReLU. Files hold Nemotron's norm weights with the one already added.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.activation = Activation::kGelu;
    read_layer_norms(reader, 1e-5, config);
}

void read_nemotron(const ConfigReader& reader, ModelConfig& config) {
    read(reader, config);
    config.activation = Activation::kSquaredRelu;
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan_norm(plan, config, prefix + "ffn_norm", layer.feed_forward_norm);
    plan_ungated_feed_forward(plan, config, prefix, layer);
}

}  // namespace

const Family kNemotron = {"nemotron", read_nemotron, plan_layer};
const Family kStarCoder2 = {"starcoder2", read, plan_layer};

}  // namespace treadle
