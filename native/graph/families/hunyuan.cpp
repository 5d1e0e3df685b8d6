// Hunyuan: as Llama, with a norm over each query and key head once they are rotated.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.norms_rotated = true;
}

}  // namespace

const Family kHunyuanDense = {"hunyuan-dense", read, kQwen3.plan_layer};

}  // namespace treadle
