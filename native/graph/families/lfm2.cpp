// LFM2 (Liquid AI 2025): attention with norms of heads in some layers, gated short convolutions in those that the file
// gives no KV heads. Where it has experts, the first layers are dense; sigmoids weigh the experts of the others, and a
// bias takes part in their choice.
#include <algorithm>

#include "../refuse.h"
#include "family.h"

namespace treadle {
namespace {

constexpr const char* kConvolutionIn = "shortconv.in_proj.weight";

// Tensors say which layers are convolutions; metadata has to agree, because others plan memory by it.
void check_kind(const GgufFile& file, size_t layer, bool is_convolution, bool attends) {
    if (is_convolution != attends) return;
    refuse(file, "layer " + std::to_string(layer) + " has " + (attends ? "KV heads" : "no KV heads") + " and " +
                     (is_convolution ? "the tensor " : "no tensor ") + kConvolutionIn);
}

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    if (reader.integer_or("attention.sliding_window", 0, 0, 1u << 30) > 0) {
        refuse_unsupported(reader.file(),
                           reader.key("attention.sliding_window") + ": this core runs no windows beside convolutions");
    }
    const int32_t positions = reader.integer("shortconv.l_cache", 2, kKvBlockTokens);
    std::vector<bool> attends = reader.flags("attention.head_count_kv", config.layers.size());
    attends.resize(config.layers.size(), true);  // of files with one number for all layers
    for (size_t i = 0; i < config.layers.size(); ++i) {
        const std::string name = "blk." + std::to_string(i) + "." + kConvolutionIn;
        const bool is_convolution = reader.file().tensor(name) != nullptr;
        check_kind(reader.file(), i, is_convolution, attends[i]);
        if (is_convolution) config.layers[i].convolution = positions;
    }
}

void read_mixture(const ConfigReader& reader, ModelConfig& config) {
    read(reader, config);
    read_experts(reader, config.feed_forward_size, config);
    config.experts.sigmoid = true;
    read_expert_weights(reader, config);
}

void plan_convolution(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    const int64_t hidden_size = config.hidden_size;
    const int64_t positions = std::ranges::max(config.layers, {}, &LayerConfig::convolution).convolution;
    plan.vector(prefix + "attn_norm.weight", hidden_size, &layer.attention_norm.weight);
    plan.matrix(prefix + kConvolutionIn, 3 * hidden_size, hidden_size, layer.convolution.in);
    plan.table(prefix + "shortconv.conv.weight", hidden_size, positions, &layer.convolution.kernel);
    plan.matrix(prefix + "shortconv.out_proj.weight", hidden_size, hidden_size, layer.attention_output);
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    if (plan.has(prefix + kConvolutionIn)) {
        plan_convolution(plan, config, prefix, layer);
    } else {
        plan_attention(plan, config, prefix, layer);
        plan_head_norms(plan, config, prefix, layer);
    }
    plan.vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_dense_or_experts(plan, config, prefix, layer);
}

// The norm behind the layers has the name that other files give one of the embedding.
void plan_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    constexpr const char* kOutput = "output.weight";
    plan.vector("token_embd_norm.weight", config.hidden_size, &ends.output_norm.weight);
    if (plan.has(kOutput)) plan.matrix(kOutput, config.vocab_size, config.hidden_size, ends.output);
}

}  // namespace

const Family kLfm2 = {"lfm2", read, plan_layer, plan_ends};
const Family kLfm2Moe = {"lfm2moe", read_mixture, plan_layer, plan_ends};

}  // namespace treadle
