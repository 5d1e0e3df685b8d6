#include "rope.h"

#include <algorithm>
#include <cmath>

#include "refuse.h"

namespace treadle {
namespace {

// Divisors per pair that Llama 3.1 and later files carry as a tensor.
std::vector<float> read_factors(const GgufFile& file, const char* name, size_t num_pairs) {
    std::vector<float> factors(num_pairs, 1.0f);
    const GgufTensor* tensor = file.tensor(name);
    if (tensor == nullptr) return factors;
    if (tensor->format != kF32 || tensor->shape.size() != 1 || tensor->shape[0] != num_pairs) {
        refuse(file, "tensor " + std::string(name) + " is not f32 [" + std::to_string(num_pairs) + "]");
    }
    file.read(*tensor, 0, num_pairs * sizeof(float), reinterpret_cast<uint8_t*>(factors.data()));
    for (const float factor : factors) {
        if (!(factor > 0.0f) || !std::isfinite(factor)) {
            refuse(file,
                   "tensor " + std::string(name) + " holds " + std::to_string(factor) + ", expected positive numbers");
        }
    }
    return factors;
}

// YaRN (Peng et al. 2023): pairs that turn often keep their frequency, slow ones are interpolated, with a ramp between.
void apply_yarn(const ConfigReader& reader, double base, double factor, int32_t context_length, RopeTable& table) {
    constexpr double kTwoPi = 6.283185307179586;
    const double original = reader.integer_or("rope.scaling.original_context_length", context_length, 1, 1u << 30);
    const double beta_fast = reader.real_or("rope.scaling.yarn_beta_fast", 32.0, 0.0, 1e6);
    const double beta_slow = reader.real_or("rope.scaling.yarn_beta_slow", 1.0, 0.0, 1e6);
    const double dims = 2.0 * static_cast<double>(table.frequencies.size());
    const auto pair_that_turns = [&](double turns) {
        return dims * std::log(original / (turns * kTwoPi)) / (2.0 * std::log(base));
    };
    const double low = std::max(0.0, std::floor(pair_that_turns(beta_fast)));
    const double high = std::min(dims - 1.0, std::ceil(pair_that_turns(beta_slow)));
    for (size_t i = 0; i < table.frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
        table.frequencies[i] *= (1.0 - ramp) + ramp / factor;
    }
    const double attention_factor = reader.real_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3);
    table.magnitude = static_cast<float>(attention_factor * (1.0 + 0.1 * std::log(factor)));
}

}  // namespace

RopeTable plain_rope(double base, int32_t rotary_dims) {
    RopeTable table;
    for (int32_t i = 0; i < rotary_dims / 2; ++i) {
        table.frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / rotary_dims));
    }
    return table;
}

RopeTable read_rope(const ConfigReader& reader, const ModelConfig& config, int32_t rotary_dims) {
    const GgufFile& file = reader.file();
    const double base = reader.real_or("rope.freq_base", 10000.0, 1.0 + 1e-6, 1e12);
    const std::vector<float> factors = read_factors(file, "rope_freqs.weight", static_cast<size_t>(rotary_dims) / 2);
    RopeTable table = plain_rope(base, rotary_dims);
    for (size_t i = 0; i < factors.size(); ++i) table.frequencies[i] /= factors[i];
    const std::string_view scaling = file.get_string(reader.key("rope.scaling.type")).value_or("none");
    const double factor = reader.real_or("rope.scaling.factor", 1.0, 1.0, 1e6);
    if (scaling == "linear") {
        for (double& frequency : table.frequencies) frequency /= factor;
    } else if (scaling == "yarn") {
        apply_yarn(reader, base, factor, config.context_length, table);
    } else if (scaling != "none") {
        refuse_unsupported(
            file, reader.key("rope.scaling.type") + " is " + quoted(scaling) + ", expected none, linear or yarn");
    }
    return table;
}

}  // namespace treadle
