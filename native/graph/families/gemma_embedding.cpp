// EmbeddingGemma (Google 2025): as Gemma 3, but every token sees those behind it, too, windows reach to both sides, and
// the mean of the states goes through two more products, where the file has them.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    kGemma3.read(reader, config);
    config.causal = false;
}

void plan_ends(TensorPlan& plan, const ModelConfig& config, ModelEnds& ends) {
    constexpr const char* kFirst = "dense_2.weight";
    constexpr const char* kSecond = "dense_3.weight";
    plan.vector("output_norm.weight", config.hidden_size, &ends.output_norm.weight);
    if (!plan.has(kFirst)) return;
    const auto inner_size = static_cast<int64_t>(plan.require(kFirst).shape.back());
    plan.matrix(kFirst, inner_size, config.hidden_size, ends.head.first);
    plan.matrix(kSecond, static_cast<int64_t>(plan.require(kSecond).shape.back()), inner_size, ends.head.second);
}

}  // namespace

const Family kGemmaEmbedding = {"gemma-embedding", read, kGemma3.plan_layer, plan_ends};

}  // namespace treadle
