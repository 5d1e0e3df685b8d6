// Hunyuan: as Llama, with a norm over each query and key head once they are rotated. Also with experts beside one for
// all tokens, all as large as the files say of the feed-forward.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.norms_rotated = true;
}

void read_mixture(const ConfigReader& reader, ModelConfig& config) {
    read(reader, config);
    read_experts(reader, config.feed_forward_size, config);
    config.experts.feed_forward_size = config.feed_forward_size;
    config.experts.shared_feed_forward_size =
        reader.integer_or("expert_shared_feed_forward_length", config.feed_forward_size, 1, 1u << 20);
    read_expert_weights(reader, config);
}

}  // namespace

const Family kHunyuanDense = {"hunyuan-dense", read, kQwen3.plan_layer};
const Family kHunyuanMoe = {"hunyuan-moe", read_mixture, kQwen3Moe.plan_layer};

}  // namespace treadle
