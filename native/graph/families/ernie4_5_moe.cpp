// ERNIE 4.5 with a mixture of experts: as Llama, the first layers dense, in the others experts chosen with a bias
// beside one for all tokens.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    read_experts(reader, config.feed_forward_size, config);
    config.experts.shared_feed_forward_size = reader.integer_or("expert_shared_feed_forward_length", 0, 0, 1u << 20);
    read_expert_weights(reader, config);
}

}  // namespace

const Family kErnie45Moe = {"ernie4_5-moe", read, kDeepSeek.plan_layer};

}  // namespace treadle
