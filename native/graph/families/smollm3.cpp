// SmolLM3: as Llama, with every fourth layer without positions.
#include "family.h"

namespace treadle {
namespace {

constexpr size_t kPeriod = 4;

void read(const ConfigReader&, ModelConfig& config) {
    for (size_t i = kPeriod - 1; i < config.layers.size(); i += kPeriod) config.layers[i].rope = kNoRope;
}

}  // namespace

const Family kSmolLm3 = {"smollm3", read, plan_llama_layer};

}  // namespace treadle
