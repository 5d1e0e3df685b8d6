// A model in memory: hyperparameters, packed weights, and how a transformer uses them: a decoder, which continues text,
// or an encoder, which turns a whole text into states.
//
// What an architecture has of its own is data here, written once by its family (graph/families): the forward pass asks
// for a norm that is null or a scale that is one, never for a name.
#pragma once

#include <algorithm>
#include <array>
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

// Of the gate, or of what has no gate, which is kGelu, kSquaredRelu (So et al. 2021) or kXielu. kClampedSilu:
// sigmoid(1.702 g) g (u + 1), with g at most 7 and u from -7 to 7 (OpenAI 2025).
enum class Activation { kSilu, kGelu, kClampedSilu, kSquaredRelu, kXielu };

// positive x x + beta x above 0, else negative (exp(min(x, epsilon)) - 1 - x) + beta x (Huang and Schlag 2024).
struct Xielu {
    float positive = 0.0f, negative = 0.0f, beta = 0.0f, epsilon = 0.0f;
};

// How keys and values are kept: see formats.h.
enum class KvType { kF16, kQ8_0 };

// Rotary positions of some layers: the rotation per position of each pair, scaling (linear, YaRN, factors of a file)
// applied; cos and sin are multiplied by the magnitude.
struct RopeTable {
    std::vector<double> frequencies;
    float magnitude = 1.0f;
};

constexpr int32_t kNoRope = -1;

// What layers of one model may differ in.
struct LayerConfig {
    int32_t rope = 0;  // index of the table, kNoRope for a layer without positions
    // Positions a token of a decoder sees, itself included; one of an encoder sees half as many on each side of it.
    // 0: all there are.
    int32_t window = 0;
    // Positions that a short convolution reads, which the layer has in the stead of attention, the token's own
    // included.
    int32_t convolution = 0;  // 0: the layer has attention
    Xielu xielu = {};
};

// Of a mixture of experts; count is 0 without one.
struct ExpertConfig {
    int32_t count = 0;
    int32_t used = 0;  // by each token
    int32_t feed_forward_size = 0;
    int32_t shared_feed_forward_size = 0;  // of the expert that every token goes through, 0 without one
    bool normalise = true;                 // the weights of the chosen experts add up to one
    bool sigmoid = false;                  // weights are sigmoids of what the router says, not shares (softmax)
    float scale = 1.0f;                    // of the weights of chosen experts
    // Experts lie in groups of one size, and a token's come from so many of them, those with the best two experts.
    int32_t num_groups = 1, groups_used = 1;
};

struct ModelConfig {
    std::string architecture;
    int32_t num_layers = 0;
    int32_t num_draft_layers = 0;  // behind the others, to guess tokens ahead: not read
    int32_t hidden_size = 0;
    int32_t feed_forward_size = 0;
    int32_t num_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t vocab_size = 0;
    int32_t context_length = 0;
    float norm_epsilon = 0.0f;
    float embedding_scale = 1.0f;
    float residual_scale = 1.0f;  // of what a layer adds
    float logit_scale = 1.0f;
    float attention_scale = 0.0f;  // of the products of queries and keys
    SoftCap attention_cap = {};    // of the same, after the scale
    // Queries grow with their position, by 1 + temperature_scale * log(1 + floor(position / temperature_length)).
    int32_t temperature_length = 0;  // 0: they do not
    float temperature_scale = 0.0f;
    SoftCap logit_cap = {};
    bool causal = true;  // false for an encoder: tokens see those behind them, too, and nothing is kept between steps
    bool centres_norms = false;  // norms take away the mean first (Ba et al. 2016)
    Activation activation = Activation::kSilu;
    bool norms_projections = false;  // query and key norms span all heads together
    bool norms_rotated = false;      // they follow the rotation
    bool parallel_halves = false;    // attention and feed-forward read the same, and both are added
    RopePairing rope_pairing = RopePairing::kAdjacent;
    std::vector<RopeTable> ropes;
    bool long_rope = false;  // of two sets of factors the one for long contexts, see LoadOptions::context_length
    std::vector<LayerConfig> layers;
    ExpertConfig experts;

    int32_t query_size() const { return num_heads * head_dim; }
    int32_t kv_size() const { return num_kv_heads * head_dim; }
    bool has_convolutions() const {
        return std::ranges::any_of(layers, [](const LayerConfig& layer) { return layer.convolution > 0; });
    }
    int32_t group_size() const { return num_heads / num_kv_heads; }  // query heads that share one KV head
    // Pairs of all rope tables before the given one.
    int64_t first_pair(size_t rope) const {
        int64_t count = 0;
        for (size_t i = 0; i < rope; ++i) count += static_cast<int64_t>(ropes[i].frequencies.size());
        return count;
    }
    int64_t rope_pairs() const { return first_pair(ropes.size()); }
};

// A packed weight matrix: `rows` outputs of `columns` inputs each, in panels of 16 rows (formats.h).
struct Matrix {
    uint32_t format = 0;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t panel_bytes = 0;
    uint8_t* data = nullptr;
    int32_t id = -1;  // place in Adapter::change of a matrix that adapters may change

    int64_t num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
    const uint8_t* panel(int64_t index) const { return data + index * panel_bytes; }
    size_t num_bytes() const { return static_cast<size_t>(num_panels() * panel_bytes); }
};

// Weight and bias of a norm; null where the model has none.
struct Norm {
    const float* weight = nullptr;
    const float* bias = nullptr;
};

// Without a gate (no rows), what `up` gives is activated itself.
struct FeedForward {
    Matrix gate, up, down;
    const float* gate_bias = nullptr;  // biases are null where the model has none
    const float* up_bias = nullptr;
    const float* down_bias = nullptr;
};

// A router gives every token its experts, and their outputs weights (Shazeer et al. 2017).
struct Mixture {
    Matrix router;  // [experts][hidden_size]
    const float* router_bias = nullptr;
    const float* choice_bias = nullptr;  // [experts], of the weights, for the choice alone
    std::vector<FeedForward> experts;    // the shared one last
    const float* shared_gate = nullptr;  // [hidden_size]: the sigmoid of its product weighs the shared expert
};

// A gated short convolution (Liquid AI 2025): `in` makes an input gate, an output gate and values of a token, one after
// the other. Each column of the gated values is convolved along the text, then gated.
struct Convolution {
    Matrix in;                      // [3 * hidden_size][hidden_size]
    const float* kernel = nullptr;  // [hidden_size][LayerConfig::convolution], the token's own position last
};

// Norms and biases are null where the model has none.
struct LayerWeights {
    Norm attention_norm;
    Matrix query, key, value;
    Convolution convolution;                 // in the stead of these and of attention; empty in a layer that has them
    Matrix attention_output;                 // of what attention, or the convolution, gives
    const float* attention_sinks = nullptr;  // [num_heads], scores of a position that has no value
    const float* query_norm = nullptr;       // of every head before it is rotated, but see ModelConfig
    const float* key_norm = nullptr;
    const float* query_bias = nullptr;
    const float* key_bias = nullptr;
    const float* value_bias = nullptr;
    const float* attention_output_bias = nullptr;
    const float* post_attention_norm = nullptr;  // of what goes back into the residual
    Norm residual_attention_norm;                // of the residual itself after that
    Norm feed_forward_norm;
    FeedForward feed_forward;  // empty where there is a mixture
    Mixture mixture;           // without experts in a dense layer
    const float* post_feed_forward_norm = nullptr;
    Norm residual_feed_forward_norm;
};

// What makes numbers of states, or the scores of a text, out of what the layers give for it: two products with an
// activation and a norm between them. Without a first product the second one takes the states themselves; without a
// second one there is no head, and states leave the model as they are.
struct Head {
    enum class Activation { kNone, kTanh, kGelu };

    Matrix first, second;
    const float* first_bias = nullptr;  // biases are null where the model has none
    const float* second_bias = nullptr;
    Activation activation = Activation::kNone;
    Norm norm;           // of what the activation gives
    bool means = false;  // takes the mean of states instead of their sum

    bool exists() const { return second.rows > 0; }
};

// What is before and behind the layers. Nothing but the token embedding is in every model.
struct ModelEnds {
    Matrix token_embedding;
    Matrix positions;    // [context_length][hidden_size], added to the embedding
    Matrix token_types;  // [kinds of text][hidden_size], of which the first is added
    Norm embedding_norm;
    Norm output_norm;
    Matrix output;  // of logits; the embedding again where the file ties them
    Head head;
};

// The matrices of a layer that adapters may change, in the order of their ids.
constexpr int32_t kAdaptable = 8;
inline std::array<Matrix*, kAdaptable> adaptable(LayerWeights& layer) {
    FeedForward& dense = layer.feed_forward;
    return {&layer.query, &layer.key, &layer.value, &layer.convolution.in, &layer.attention_output,
            &dense.gate,  &dense.up,  &dense.down};
}

// A tensor of the file that adapters may change, and the matrices that its rows are, one after the other.
struct AdaptableTensor {
    std::string name;
    std::vector<const Matrix*> parts;
};

// A copy of all weights in the memory of a NUMA node, for workers on these CPUs.
struct WeightCopy {
    int node;
    std::vector<int> cpus;
};

struct LoadOptions {
    const KernelTable* kernels = nullptr;
    std::vector<int> cpus;  // workers that read and pack, see ThreadPool
    // The longest sequence that will be asked for; models with factors of positions for short and for long contexts
    // take one of the two sets by it. 0: the model's own context.
    int64_t context_length = 0;
    // Empty: there is one, wherever the system puts it. Workers on other CPUs read the first one.
    std::vector<WeightCopy> copies;
    // Called on the loading thread with bytes read so far and in all; an exception of its own ends the load.
    std::function<void(uint64_t, uint64_t)> progress;
};

class Model {
 public:
    // Checks every tensor of the file before the first is read, then packs all. Throws ModelFileError, CapacityError,
    // UsageError.
    static std::shared_ptr<Model> load(const GgufFile& file, const LoadOptions& options);

    // Checks what `load` does before it reads a weight. Throws ModelFileError, UnsupportedModelError.
    static void check(const GgufFile& file);

    const ModelConfig& config() const { return config_; }
    const KernelTable& kernels() const { return *kernels_; }
    const ModelEnds& ends() const { return ends_; }
    const std::vector<LayerWeights>& layers() const { return layers_; }
    const std::vector<AdaptableTensor>& adaptable_tensors() const { return adaptable_tensors_; }

    // Numbers of a state that leaves the model.
    int64_t state_size() const { return ends_.head.exists() ? ends_.head.second.rows : config_.hidden_size; }

    // Some layer normalises what it adds to the residual.
    bool has_post_norms() const;

    // Of all copies.
    uint64_t weight_bytes() const { return weights_.num_bytes(); }
    const PageBuffer& weights() const { return weights_; }
    bool has_copies() const { return !copy_of_cpu_.empty(); }
    // How far behind the first copy, in which matrices are, that of a CPU is; -1 is a CPU that nobody knows.
    int64_t copy_offset(int cpu) const {
        const auto index = static_cast<size_t>(cpu);
        return cpu >= 0 && index < copy_of_cpu_.size() ? copy_of_cpu_[index] * copy_bytes_ : 0;
    }
    // Weight bytes that one decoded token has to read.
    uint64_t decode_bytes() const;
    int lock_memory() const { return weights_.lock(); }

 private:
    friend class WeightLoader;
    ModelConfig config_;
    const KernelTable* kernels_ = nullptr;
    PageBuffer weights_;  // copy after copy
    int64_t copy_bytes_ = 0;
    std::vector<int32_t> copy_of_cpu_;
    ModelEnds ends_;
    std::vector<LayerWeights> layers_;
    std::vector<AdaptableTensor> adaptable_tensors_;
};

}  // namespace treadle
