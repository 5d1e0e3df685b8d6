// A model in memory: hyperparameters, packed weights, and how a decoder-only transformer of the llama family uses them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "treadle/gguf.h"
#include "treadle/kernels.h"
#include "treadle/memory.h"

namespace treadle {

enum class RopePairing { kAdjacent, kHalves };

// How keys and values are kept: see formats.h.
enum class KvType { kF16, kQ8_0 };

struct ModelConfig {
    std::string architecture;
    int32_t num_layers = 0;
    int32_t hidden_size = 0;
    int32_t feed_forward_size = 0;
    int32_t num_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t vocab_size = 0;
    int32_t context_length = 0;
    float norm_epsilon = 0.0f;
    RopePairing rope_pairing = RopePairing::kAdjacent;
    bool needs_qkv_bias = false;
    int32_t rotary_dims = 0;
    // Rotation per position of each pair, scaling (linear, YaRN, Llama 3 factors) applied; cos and sin are multiplied
    // by rope_magnitude.
    std::vector<double> rope_frequencies;
    float rope_magnitude = 1.0f;

    int32_t query_size() const { return num_heads * head_dim; }
    int32_t kv_size() const { return num_kv_heads * head_dim; }
    int32_t group_size() const { return num_heads / num_kv_heads; }  // query heads that share one KV head
};

// A packed weight matrix: `rows` outputs of `columns` inputs each, in panels of 16 rows (formats.h).
struct Matrix {
    uint32_t format = 0;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t panel_bytes = 0;
    uint8_t* data = nullptr;

    int64_t num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
    const uint8_t* panel(int64_t index) const { return data + index * panel_bytes; }
    size_t num_bytes() const { return static_cast<size_t>(num_panels() * panel_bytes); }
};

struct LayerWeights {
    const float* attention_norm = nullptr;
    Matrix query, key, value, attention_output;
    const float* query_bias = nullptr;  // biases are null where the file has none
    const float* key_bias = nullptr;
    const float* value_bias = nullptr;
    const float* attention_output_bias = nullptr;
    const float* feed_forward_norm = nullptr;
    Matrix gate, up, down;
};

struct LoadOptions {
    const KernelTable* kernels = nullptr;
    std::vector<int> cpus;  // workers that read and pack, see ThreadPool
    // Called on the loading thread with bytes read so far and in all; an exception of its own ends the load.
    std::function<void(uint64_t, uint64_t)> progress;
};

class Model {
 public:
    // Checks every tensor of the file before the first is read, then packs all. Throws ModelFileError, CapacityError,
    // UsageError.
    static std::shared_ptr<Model> load(const GgufFile& file, const LoadOptions& options);

    const ModelConfig& config() const { return config_; }
    const KernelTable& kernels() const { return *kernels_; }
    const Matrix& token_embedding() const { return token_embedding_; }
    const Matrix& output() const { return output_; }  // the embedding again where the file ties them
    const float* output_norm() const { return output_norm_; }
    const std::vector<LayerWeights>& layers() const { return layers_; }

    uint64_t weight_bytes() const { return weights_.num_bytes(); }
    // Weight bytes that one decoded token has to read.
    uint64_t decode_bytes() const;
    int lock_memory() const { return weights_.lock(); }

 private:
    friend class WeightLoader;
    ModelConfig config_;
    const KernelTable* kernels_ = nullptr;
    PageBuffer weights_;
    Matrix token_embedding_, output_;
    const float* output_norm_ = nullptr;
    std::vector<LayerWeights> layers_;
};

// Reads and checks the hyperparameters. Throws ModelFileError naming the key.
ModelConfig read_model_config(const GgufFile& file);

}  // namespace treadle
