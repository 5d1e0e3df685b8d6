// What an architecture is made of. A family is one file of this folder, which reads the keys that only its models have
// and names the tensors of a layer; families.cpp lists them. To the forward pass they are all the same.
#pragma once

#include <span>
#include <string>

#include "../config_reader.h"
#include "../tensor_plan.h"
#include "treadle/model.h"

namespace treadle {

// Norm and matrix of logits behind the layers of a decoder.
void plan_decoder_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends);

struct Family {
    const char* architecture;  // general.architecture of its files

    // Adds to what all models have: config holds the common keys, one rope table from the keys under `rope.`, and
    // layers that all use it. Throws ModelFileError.
    void (*read)(const ConfigReader& reader, ModelConfig& config);

    // Asks the plan for every tensor of a layer; prefix is "blk.N.". Throws ModelFileError.
    void (*plan_layer)(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);

    // The same for what is before and behind the layers, but for the token embedding.
    void (*plan_ends)(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) = plan_decoder_ends;
};

extern const Family kApertus, kArcee, kBailingMoe, kBailingMoe2, kBert, kChatGlm, kCohere2, kCommandR, kDeepSeek,
    kDots1, kErnie45, kErnie45Moe, kExaone, kExaone4, kGemma, kGemma2, kGemma3, kGemmaEmbedding, kGlm4, kGlm4Moe,
    kGptOss, kGranite, kGraniteMoe, kHunyuanDense, kHunyuanMoe, kInternLm2, kLfm2, kLfm2Moe, kLlama, kMellum, kMiniCpm,
    kMistral3, kModernBert, kNemotron, kNomicBert, kOlmo2, kOlmoe, kPhi3, kQwen2, kQwen2Moe, kQwen2Vl, kQwen3,
    kQwen3Moe, kQwen3Vl, kQwen3VlMoe, kSeedOss, kSmolLm3, kStableLm, kStarCoder2;
std::span<const Family* const> families();

// The head of models that score a text, such as how well a document answers a query, where the file has one: a product
// with tanh behind it unless the family says otherwise, as far as there is one, and another product. Its names are the
// same in all families.
void plan_scores(TensorPlan& plan, const ModelConfig& config, Head& head);

// The parts that most layers have.
// Query, key, value and output, with the biases that the file has.
void plan_projections(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// The same after a norm.
void plan_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Norms of every query and key head.
void plan_head_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Norms of what attention and the feed-forward add to the residual.
void plan_post_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Gate, up and down.
void plan_feed_forward_products(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                                LayerWeights& layer);
// The same with gate and up in one tensor.
void plan_fused_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                             LayerWeights& layer);
// Up and down with the biases that the file has: what has no gate.
void plan_ungated_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                               LayerWeights& layer);
// Norm, gate, up and down.
void plan_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);

// What encoders have in common: layer norms, GELU, sight of all tokens.
void read_encoder(const ConfigReader& reader, ModelConfig& config);
// Weight, and bias where the file has one.
void plan_norm(TensorPlan& plan, const ModelConfig& config, const std::string& name, Norm& norm);
// Query, key and value, in one tensor or in three, and output, with the biases that the file has.
void plan_encoder_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix,
                            LayerWeights& layer);
// Norms of the residual after attention and after the feed-forward.
void plan_residual_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Where the file has them.
void plan_token_types(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends);

// plan_attention and plan_feed_forward.
void plan_llama_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);

// Sliding windows of `attention.sliding_window` tokens for the first layers of every period, all but the last one;
// `default_period` holds unless the file has a period or a list of layers. True if there are any.
bool read_windows(const ConfigReader& reader, int32_t default_period, ModelConfig& config);
// The same, where positions in windows turn by the file's base without its scaling.
void read_unscaled_windows(const ConfigReader& reader, int32_t default_period, ModelConfig& config);
// Norms that take away the mean, with `attention.layer_norm_epsilon`.
void read_layer_norms(const ConfigReader& reader, double epsilon, ModelConfig& config);
// How many experts there are, how many a token uses, and their size: `expert_feed_forward_length`, else `size`.
void read_experts(const ConfigReader& reader, int32_t size, ModelConfig& config);
// How experts are weighed, where the file says it; what the config has by then holds where it does not.
void read_expert_weights(const ConfigReader& reader, ModelConfig& config);
// As many experts for all tokens as `expert_shared_count` says, each as large as the others unless the file says how
// large.
void read_shared_experts(const ConfigReader& reader, ModelConfig& config);
// Router and experts, and the shared expert if the config has one. The norm is the family's.
void plan_experts(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// The same in layers that have a router, with the bias of the choice if there is one; gate, up and down in others.
void plan_dense_or_experts(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Biases of router and experts.
void plan_expert_biases(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, Mixture& mixture);

}  // namespace treadle
