// Ministral 3 and Mistral Small as `mistral3`: as Llama, with queries that grow with their position where the file
// asks.
#include "family.h"

namespace treadle {
namespace {

void read(const ConfigReader& reader, ModelConfig& config) {
    config.temperature_scale = static_cast<float>(reader.real_or("attention.temperature_scale", 0.0, 0.0, 1e3));
    if (config.temperature_scale == 0.0f) return;
    const int32_t original =
        reader.integer_or("rope.scaling.original_context_length", config.context_length, 1, 1u << 30);
    config.temperature_length = reader.integer_or("attention.temperature_length", original, 1, 1u << 30);
}

}  // namespace

const Family kMistral3 = {"mistral3", read, plan_llama_layer};

}  // namespace treadle
