// Apertus (Swiss AI 2025): norms of heads, and no gate but xIELU, whose numbers each layer has learnt. Files hold those
// as they were trained: what is positive by its softplus.
#include <cmath>

#include "../refuse.h"
#include "family.h"

namespace treadle {
namespace {

// One number for all layers, or one each.
std::vector<double> numbers(const GgufFile& file, const char* key, size_t count) {
    std::vector<double> found;
    const GgufValue* value = file.find(key);
    const auto* array = value ? std::get_if<std::shared_ptr<GgufArray>>(value) : nullptr;
    if (array == nullptr) {
        if (const auto one = file.get_float(key)) found.assign(count, *one);
    } else if (const auto* listed = std::get_if<std::vector<double>>(&(*array)->items)) {
        found = *listed;
    }
    if (found.size() != count) {
        refuse(file, std::string("the key ") + key + " has no numbers for " + std::to_string(count) + " layers");
    }
    for (const double number : found) {
        if (!(std::abs(number) <= 1e2)) {
            refuse(file, std::string(key) + " has " + std::to_string(number) + ", expected -100 to 100");
        }
    }
    return found;
}

float softplus(double x) { return static_cast<float>(std::log1p(std::exp(x))); }

void read(const ConfigReader& reader, ModelConfig& config) {
    config.rope_pairing = RopePairing::kHalves;
    config.activation = Activation::kXielu;
    const size_t count = config.layers.size();
    const auto positive = numbers(reader.file(), "xielu.alpha_p", count);
    const auto negative = numbers(reader.file(), "xielu.alpha_n", count);
    const auto beta = numbers(reader.file(), "xielu.beta", count);
    const auto epsilon = numbers(reader.file(), "xielu.eps", count);
    for (size_t i = 0; i < count; ++i) {
        const auto slope = static_cast<float>(beta[i]);
        config.layers[i].xielu = {softplus(positive[i]), slope + softplus(negative[i]), slope,
                                  static_cast<float>(epsilon[i])};
    }
}

void plan_layer(TensorPlan& plan, const ModelConfig& config, const std::string& prefix, LayerWeights& layer) {
    kStarCoder2.plan_layer(plan, config, prefix, layer);
    plan_head_norms(plan, config, prefix, layer);
}

}  // namespace

const Family kApertus = {"apertus", read, plan_layer};

}  // namespace treadle
