// EXAONE 3 is Llama with other rotary pairs. EXAONE 4 has norms of heads, norms only after attention and feed-forward,
// and where the file asks for windows, one layer of four without window and without positions.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) { config.rope_pairing = RopePairing::kHalves; }

void read_exaone4(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    if (!read_windows(reader, 4, config)) return;
    for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 0 : kNoRope;
}

void plan_exaone4_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    plan_projections(plan, config, prefix, layer);
    plan_head_norms(plan, config, prefix, layer);
    plan_feed_forward_products(plan, config, prefix, layer);
    plan_post_norms(plan, config, prefix, layer);
}

}  // namespace

const Family kExaone = {"exaone", read, plan_llama_layer};
const Family kExaone4 = {"exaone4", read_exaone4, plan_exaone4_layer};

}  // namespace treadle
