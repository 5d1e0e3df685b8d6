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

// The context the model was first trained with.
int32_t original_context(const ConfigReader& reader, const ModelConfig& config) {
    return reader.integer_or("rope.scaling.original_context_length", config.context_length, 1, 1u << 30);
}

// YaRN (Peng et al. 2023): pairs that turn often keep their frequency, slow ones are interpolated, with a ramp between.
void apply_yarn(const ConfigReader& reader, double base, double factor, double original, RopeTable& table) {
    constexpr double kTwoPi = 6.283185307179586;
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
    // Models that correct the growth of attention elsewhere say by how much of it.
    const double corrected = reader.real_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e3);
    table.magnitude *= static_cast<float>((1.0 + 0.1 * std::log(factor)) / (1.0 + 0.1 * corrected * std::log(factor)));
}

}  // namespace

RopeTable plain_rope(double base, int32_t rotary_dims) {
    RopeTable table;
    for (int32_t i = 0; i < rotary_dims / 2; ++i) {
        table.frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / rotary_dims));
    }
    return table;
}

void read_rope(const ConfigReader& reader, ModelConfig& config, int32_t rotary_dims) {
    const GgufFile& file = reader.file();
    const double base = reader.real_or("rope.freq_base", 10000.0, 1.0 + 1e-6, 1e12);
    const char* name = kRopeFactors;
    if (file.tensor(kLongRopeFactors) != nullptr) {  // LongRoPE (Ding et al. 2024)
        const int64_t wanted = reader.context_length() > 0 ? reader.context_length() : config.context_length;
        config.long_rope = wanted > original_context(reader, config);
        name = config.long_rope ? kLongRopeFactors : kShortRopeFactors;
    }
    const std::vector<float> factors = read_factors(file, name, static_cast<size_t>(rotary_dims) / 2);
    RopeTable table = plain_rope(base, rotary_dims);
    for (size_t i = 0; i < factors.size(); ++i) table.frequencies[i] /= factors[i];
    table.magnitude = static_cast<float>(reader.real_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3));
    // Older files give a factor alone, and that by another name.
    const std::string_view scaling = file.get_string(reader.key("rope.scaling.type")).value_or("linear");
    const double factor =
        reader.real_or("rope.scaling.factor", reader.real_or("rope.scale_linear", 1.0, 1.0, 1e6), 1.0, 1e6);
    if (scaling == "linear") {
        for (double& frequency : table.frequencies) frequency /= factor;
    } else if (scaling == "yarn") {
        apply_yarn(reader, base, factor, original_context(reader, config), table);
    } else if (scaling != "none" && !(scaling == "longrope" && file.tensor(kLongRopeFactors) != nullptr)) {
        refuse_unsupported(file, reader.key("rope.scaling.type") + " is " + quoted(scaling) +
                                     ", expected none, linear, yarn, or longrope with its factors");
    }
    config.ropes.push_back(std::move(table));
}

}  // namespace treadle
