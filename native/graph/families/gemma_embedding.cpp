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
    constexpr const char* kNames[] = {"dense_2.weight", "dense_3.weight"};
    plan.vector("output_norm.weight", config.hidden_size, &ends.output_norm.weight);
    if (!plan.has(kNames[0])) return;
    int64_t columns = config.hidden_size;
    for (size_t i = 0; i < ends.projection.size(); ++i) {
        const std::vector<uint64_t>& shape = plan.require(kNames[i]).shape;
        const auto rows = static_cast<int64_t>(shape.back());
        plan.matrix(kNames[i], rows, columns, ends.projection[i]);
        columns = rows;
    }
}

}  // namespace

const Family kGemmaEmbedding = {"gemma-embedding", read, kGemma3.plan_layer, plan_ends};

}  // namespace treadle
