// StableLM 2 and StableLM 3B: as Llama, with norms that take away the mean and positions that turn a part of a head.
// The 12B has other norms of heads and is not one of these.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    read_layer_norms(reader, 1e-5, config);
}

}  // namespace

const Family kStableLm = {"stablelm", read, plan_llama_layer};

}  // namespace treadle
