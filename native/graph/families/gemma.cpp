// Gemma 1: as Llama, with a scaled embedding and a GELU gate. Files hold norm weights with the one already added.
#include <cmath>

#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.activation = Activation::kGelu;
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
}

}  // namespace

const Family kGemma = {"gemma", read, plan_llama_layer};

}  // namespace treadle
