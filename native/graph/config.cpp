// The hyperparameters that all families share; each family reads its own (families/).
#include "config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "config_reader.h"
#include "refuse.h"
#include "rope.h"

namespace treadle {
namespace {

void check_heads(const GgufFile& file, const ModelConfig& config, int32_t rotary_dims) {
    if (config.num_heads % config.num_kv_heads != 0) {
        refuse(file, "attention.head_count " + std::to_string(config.num_heads) +
                         " is not a multiple of attention.head_count_kv " + std::to_string(config.num_kv_heads));
    }
    if (config.head_dim < 8 || config.head_dim % 8 != 0 || config.head_dim > 1024) {
        refuse(file, "the head dimension (attention.key_length, else embedding_length / attention.head_count) is " +
                         std::to_string(config.head_dim) + ", expected a multiple of 8 from 8 to 1024");
    }
    if (rotary_dims % 2 != 0 || rotary_dims > config.head_dim) {
        refuse(file, "rope.dimension_count is " + std::to_string(rotary_dims) +
                         ", expected an even number up to the head dimension " + std::to_string(config.head_dim));
    }
}

// Some models that were trained to continue texts have learnt to read them in both directions since.
void read_sight(const ConfigReader& reader, ModelConfig& config) {
    const std::optional<bool> causal = reader.file().get_bool(reader.key("attention.causal"));
    if (!causal || *causal == config.causal) return;
    const bool has_windows =
        std::ranges::any_of(config.layers, [](const LayerConfig& layer) { return layer.window > 0; });
    if (*causal || has_windows || config.has_convolutions()) {
        refuse_unsupported(reader.file(), reader.key("attention.causal") + " is " + (*causal ? "true" : "false") +
                                              ", which this core does not run for " + config.architecture);
    }
    config.causal = false;
}

// Files give one number for all layers, or one per layer, which is 0 where a layer has no attention.
int32_t read_kv_heads(const ConfigReader& reader, const ModelConfig& config) {
    constexpr const char* kName = "attention.head_count_kv";
    const auto most = static_cast<uint64_t>(config.num_heads);
    if (!reader.is_array(kName)) return reader.integer_or(kName, config.num_heads, 1, most);
    int32_t num_kv_heads = 0;
    for (const int32_t number : reader.integers(kName, static_cast<size_t>(config.num_layers), 0, most)) {
        if (num_kv_heads > 0 && number > 0 && number != num_kv_heads) {
            refuse_unsupported(reader.file(), reader.key(kName) + " differs from layer to layer: " +
                                                  std::to_string(num_kv_heads) + " and " + std::to_string(number));
        }
        num_kv_heads = std::max(num_kv_heads, number);
    }
    if (num_kv_heads == 0) refuse_unsupported(reader.file(), reader.key(kName) + " is 0 in every layer");
    return num_kv_heads;
}

const Family& family_of(const ConfigReader& reader) {
    std::string names;
    for (const Family* family : families()) {
        if (reader.architecture() == family->architecture) return *family;
        names += (names.empty() ? "" : ", ") + std::string(family->architecture);
    }
    refuse_unsupported(reader.file(),
                       "architecture " + quoted(reader.architecture()) + " is not one this core runs (" + names + ")");
}

}  // namespace

FileConfig read_config(const GgufFile& file, int64_t context_length) {
    const ConfigReader reader(file, context_length);
    const Family& family = family_of(reader);
    ModelConfig config;
    config.architecture = reader.architecture();
    const int32_t num_blocks = reader.integer("block_count", 1, 512);
    config.num_draft_layers = reader.integer_or("nextn_predict_layers", 0, 0, static_cast<uint64_t>(num_blocks) - 1);
    config.num_layers = num_blocks - config.num_draft_layers;
    config.hidden_size = reader.integer("embedding_length", 1, 1u << 17);
    config.feed_forward_size = reader.integer("feed_forward_length", 1, 1u << 20);
    config.context_length = reader.integer("context_length", 1, 1u << 30);
    config.num_heads = reader.integer("attention.head_count", 1, 1024);
    config.num_kv_heads = read_kv_heads(reader, config);
    config.head_dim = reader.integer_or("attention.key_length", config.hidden_size / config.num_heads, 1, 1024);
    reader.integer_or("attention.value_length", config.head_dim, static_cast<uint64_t>(config.head_dim),
                      static_cast<uint64_t>(config.head_dim));
    config.norm_epsilon = static_cast<float>(reader.real_or("attention.layer_norm_rms_epsilon", 1e-5, 0.0, 1.0));
    const int32_t rotary_dims = reader.integer_or("rope.dimension_count", config.head_dim, 2, 1024);
    check_heads(file, config, rotary_dims);
    const float usual_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
    config.attention_scale = static_cast<float>(reader.real_or("attention.scale", usual_scale, 1e-6, 1e6));
    read_rope(reader, config, rotary_dims);
    config.layers.resize(static_cast<size_t>(config.num_layers));
    family.read(reader, config);
    read_sight(reader, config);
    if (reader.integer_or("expert_count", 0, 0, 1u << 20) != config.experts.count) {
        refuse_unsupported(
            file, "mixture-of-experts models of architecture " + config.architecture + " do not run on this core");
    }
    return {&family, std::move(config)};
}

}  // namespace treadle
