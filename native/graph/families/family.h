// What an architecture is made of. A family is one file of this folder, which reads the keys that only its models have
// and names the tensors of a layer; families.cpp lists them. To the forward pass they are all the same.
#pragma once

#include <span>
#include <string>

#include "../config_reader.h"
#include "../tensor_plan.h"
#include "treadle/model.h"

namespace treadle {

struct Family {
    const char* architecture;  // general.architecture of its files

    // Adds to what all models have: config holds the common keys, one rope table from the keys under `rope.`, and
    // layers that all use it. Throws ModelFileError.
    void (*read)(const ConfigReader& reader, ModelConfig& config);

    // Asks the plan for every tensor of a layer; prefix is "blk.N.". Throws ModelFileError.
    void (*plan_layer)(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
};

extern const Family kLlama, kQwen2, kQwen3;
std::span<const Family* const> families();

// The parts that most layers have.
// Norm, query, key, value and output, with the biases that the file has.
void plan_attention(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Norms of every query and key head.
void plan_head_norms(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);
// Norm, gate, up and down.
void plan_feed_forward(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer);

}  // namespace treadle
