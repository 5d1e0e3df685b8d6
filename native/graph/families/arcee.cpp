// AFM (Arcee 2025): as Llama, with a squared ReLU and no gate.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader&, ModelConfig& config) { config.activation = Activation::kSquaredRelu; }

}  // namespace

const Family kArcee = {"arcee", read, kStarCoder2.plan_layer};

}  // namespace treadle
