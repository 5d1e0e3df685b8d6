// Hyperparameters from GGUF metadata. Every number is checked against limits before anything is computed or allocated
// from it.
#include <cmath>
#include <cstring>

#include "refuse.h"
#include "treadle/model.h"

namespace treadle {
namespace {

struct Architecture {
    const char* name;
    RopePairing rope_pairing;
    bool needs_qkv_bias;
};

// Decoders of the llama family: RMS norm, rotary positions, grouped-query attention, gated SiLU feed-forward.
// Converters permute the query and key rows of `llama` files so that neighbours form the rotary pairs.
constexpr Architecture kArchitectures[] = {
    {"llama", RopePairing::kAdjacent, false},
    {"qwen2", RopePairing::kHalves, true},
};

class ConfigReader {
 public:
    explicit ConfigReader(const GgufFile& file) : file_(file), prefix_(architecture() + ".") {}

    std::string architecture() const {
        const auto name = file_.get_string("general.architecture");
        if (!name) refuse(file_, "the key general.architecture is missing");
        return std::string(*name);
    }

    std::string key(const char* name) const { return prefix_ + name; }

    int32_t integer(const char* name, uint64_t low, uint64_t high) const {
        const auto value = file_.get_uint(key(name));
        if (!value) refuse(file_, "the key " + key(name) + " is missing");
        return checked(name, *value, low, high);
    }

    int32_t integer_or(const char* name, int32_t fallback, uint64_t low, uint64_t high) const {
        const auto value = file_.get_uint(key(name));
        return value ? checked(name, *value, low, high) : fallback;
    }

    double real_or(const char* name, double fallback, double low, double high) const {
        const double value = file_.get_float(key(name)).value_or(fallback);
        if (!(value >= low && value <= high)) {
            refuse(file_, key(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) + " to " +
                              std::to_string(high));
        }
        return value;
    }

 private:
    int32_t checked(const char* name, uint64_t value, uint64_t low, uint64_t high) const {
        if (value < low || value > high) {
            refuse(file_, key(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) + " to " +
                              std::to_string(high));
        }
        return static_cast<int32_t>(value);
    }

    const GgufFile& file_;
    std::string prefix_;
};

void check_heads(const GgufFile& file, const ModelConfig& config) {
    if (config.num_heads % config.num_kv_heads != 0) {
        refuse(file, "attention.head_count " + std::to_string(config.num_heads) +
                         " is not a multiple of attention.head_count_kv " + std::to_string(config.num_kv_heads));
    }
    if (config.head_dim < 8 || config.head_dim % 8 != 0 || config.head_dim > 1024) {
        refuse(file, "the head dimension (attention.key_length, else embedding_length / attention.head_count) is " +
                         std::to_string(config.head_dim) + ", expected a multiple of 8 from 8 to 1024");
    }
    if (config.rotary_dims % 2 != 0 || config.rotary_dims > config.head_dim) {
        refuse(file, "rope.dimension_count is " + std::to_string(config.rotary_dims) +
                         ", expected an even number up to the head dimension " + std::to_string(config.head_dim));
    }
}

// Divisors per pair that Llama 3.1 and later files carry as a tensor.
std::vector<float> read_rope_factors(const GgufFile& file, size_t num_pairs) {
    std::vector<float> factors(num_pairs, 1.0f);
    const GgufTensor* tensor = file.tensor("rope_freqs.weight");
    if (tensor == nullptr) return factors;
    if (tensor->format != kF32 || tensor->shape.size() != 1 || tensor->shape[0] != num_pairs) {
        refuse(file, "tensor rope_freqs.weight is not f32 [" + std::to_string(num_pairs) + "]");
    }
    file.read(*tensor, 0, num_pairs * sizeof(float), reinterpret_cast<uint8_t*>(factors.data()));
    for (const float factor : factors) {
        if (!(factor > 0.0f) || !std::isfinite(factor)) {
            refuse(file, "tensor rope_freqs.weight holds " + std::to_string(factor) + ", expected positive numbers");
        }
    }
    return factors;
}

// YaRN (Peng et al. 2023): pairs that turn often keep their frequency, slow ones are interpolated, with a ramp between.
void apply_yarn(const ConfigReader& reader, double base, double factor, ModelConfig& config) {
    constexpr double kTwoPi = 6.283185307179586;
    const double original =
        reader.integer_or("rope.scaling.original_context_length", config.context_length, 1, 1u << 30);
    const double beta_fast = reader.real_or("rope.scaling.yarn_beta_fast", 32.0, 0.0, 1e6);
    const double beta_slow = reader.real_or("rope.scaling.yarn_beta_slow", 1.0, 0.0, 1e6);
    const double dims = config.rotary_dims;
    const auto pair_that_turns = [&](double turns) {
        return dims * std::log(original / (turns * kTwoPi)) / (2.0 * std::log(base));
    };
    const double low = std::max(0.0, std::floor(pair_that_turns(beta_fast)));
    const double high = std::min(dims - 1.0, std::ceil(pair_that_turns(beta_slow)));
    for (size_t i = 0; i < config.rope_frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
        config.rope_frequencies[i] *= (1.0 - ramp) + ramp / factor;
    }
    const double attention_factor = reader.real_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3);
    config.rope_magnitude = static_cast<float>(attention_factor * (1.0 + 0.1 * std::log(factor)));
}

void read_rope(const GgufFile& file, const ConfigReader& reader, ModelConfig& config) {
    const double base = reader.real_or("rope.freq_base", 10000.0, 1.0 + 1e-6, 1e12);
    const std::vector<float> factors = read_rope_factors(file, static_cast<size_t>(config.rotary_dims) / 2);
    for (size_t i = 0; i < factors.size(); ++i) {
        config.rope_frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / config.rotary_dims) /
                                          factors[i]);
    }
    const std::string_view scaling = file.get_string(reader.key("rope.scaling.type")).value_or("none");
    const double factor = reader.real_or("rope.scaling.factor", 1.0, 1.0, 1e6);
    if (scaling == "linear") {
        for (double& frequency : config.rope_frequencies) frequency /= factor;
    } else if (scaling == "yarn") {
        apply_yarn(reader, base, factor, config);
    } else if (scaling != "none") {
        refuse(file, reader.key("rope.scaling.type") + " is " + quoted(scaling) + ", expected none, linear or yarn");
    }
}

}  // namespace

ModelConfig read_model_config(const GgufFile& file) {
    const ConfigReader reader(file);
    ModelConfig config;
    config.architecture = reader.architecture();
    const Architecture* known = nullptr;
    for (const Architecture& candidate : kArchitectures) {
        if (config.architecture == candidate.name) known = &candidate;
    }
    if (known == nullptr) {
        refuse(file, "architecture " + quoted(config.architecture) + " is not one this core runs (llama, qwen2)");
    }
    if (reader.integer_or("expert_count", 0, 0, 1u << 20) != 0) {
        refuse(file, "mixture-of-experts models of architecture " + config.architecture + " do not run on this core");
    }
    config.rope_pairing = known->rope_pairing;
    config.needs_qkv_bias = known->needs_qkv_bias;
    config.num_layers = reader.integer("block_count", 1, 512);
    config.hidden_size = reader.integer("embedding_length", 1, 1u << 17);
    config.feed_forward_size = reader.integer("feed_forward_length", 1, 1u << 20);
    config.context_length = reader.integer("context_length", 1, 1u << 30);
    config.num_heads = reader.integer("attention.head_count", 1, 1024);
    config.num_kv_heads =
        reader.integer_or("attention.head_count_kv", config.num_heads, 1, static_cast<uint64_t>(config.num_heads));
    config.head_dim = reader.integer_or("attention.key_length", config.hidden_size / config.num_heads, 1, 1024);
    reader.integer_or("attention.value_length", config.head_dim, static_cast<uint64_t>(config.head_dim),
                      static_cast<uint64_t>(config.head_dim));
    config.rotary_dims = reader.integer_or("rope.dimension_count", config.head_dim, 2, 1024);
    config.norm_epsilon = static_cast<float>(reader.real_or("attention.layer_norm_rms_epsilon", 1e-5, 0.0, 1.0));
    check_heads(file, config);
    read_rope(file, reader, config);
    return config;
}

}  // namespace treadle
