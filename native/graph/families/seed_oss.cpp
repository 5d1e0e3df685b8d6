// Seed-OSS: as Qwen2, where what files call the norm after attention is the one before the feed-forward.
#include "family.h"

namespace treadle {
namespace {

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_attention(plan, config, prefix, layer);
    plan.vector(prefix + "post_attention_norm.weight", config.hidden_size, &layer.feed_forward_norm.weight);
    plan_feed_forward_products(plan, config, prefix, layer);
}

}  // namespace

const Family kSeedOss = {"seed_oss", kExaone.read, plan_layer};

}  // namespace treadle
