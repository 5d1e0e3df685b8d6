// From file to model: hyperparameters, the plan of every tensor, then all of them at once (tensor_reader.h).
#include <algorithm>

#include "config.h"
#include "refuse.h"
#include "rope.h"
#include "tensor_plan.h"
#include "tensor_reader.h"
#include "treadle/errors.h"
#include "treadle/model.h"

namespace treadle {
namespace {

std::string layer_prefix(int32_t index) { return "blk." + std::to_string(index) + "."; }

uint64_t feed_forward_bytes(const FeedForward& weights) {
    return weights.gate.num_bytes() + weights.up.num_bytes() + weights.down.num_bytes();
}

}  // namespace

class WeightLoader {
 public:
    WeightLoader(const GgufFile& file, const LoadOptions& options, const Family& family, Model& model)
        : file_(file), options_(options), family_(family), model_(model), plan_(file) {}

    void check() {
        plan();
        plan_.refuse_unused_tensors(model_.config_.architecture);
    }

    void load() {
        check();
        check_copies();
        model_.weights_ = read_tensors(file_, plan_, options_, "the weights of " + printable(file_.path()));
        assign_copies();
        if (model_.config_.causal && model_.ends_.output.rows == 0) model_.ends_.output = model_.ends_.token_embedding;
        number_matrices();
    }

 private:
    static constexpr int kMaxCpus = 1 << 16;

    void plan() {
        ModelConfig& config = model_.config_;
        const GgufTensor& embedding = plan_.require("token_embd.weight");
        if (embedding.shape.size() != 2 || embedding.shape[1] < 1 || embedding.shape[1] > (1u << 24)) {
            refuse(file_, "tensor token_embd.weight has shape " + shape_text(embedding.shape) +
                              ", expected [embedding_length, vocabulary size]");
        }
        config.vocab_size = static_cast<int32_t>(embedding.shape[1]);
        check_vocabulary();
        plan_.matrix("token_embd.weight", config.vocab_size, config.hidden_size, model_.ends_.token_embedding);
        family_.plan_ends(plan_, config, model_.ends_);
        plan_scores(plan_, config, model_.ends_.head);
        for (const char* name : {kRopeFactors, kLongRopeFactors, kShortRopeFactors}) plan_.mark_used(name);
        model_.layers_.resize(static_cast<size_t>(config.num_layers));
        for (int32_t i = 0; i < config.num_layers; ++i) {
            family_.plan_layer(plan_, config, layer_prefix(i), model_.layers_[i]);
        }
        for (int32_t i = 0; i < config.num_draft_layers; ++i) plan_.skip(layer_prefix(config.num_layers + i));
    }

    void check_vocabulary() const {
        const GgufValue* tokens = file_.find("tokenizer.ggml.tokens");
        if (tokens == nullptr) return;
        const auto* array = std::get_if<std::shared_ptr<GgufArray>>(tokens);
        const auto* strings = array ? std::get_if<std::vector<std::string_view>>(&(*array)->items) : nullptr;
        if (strings == nullptr) refuse(file_, "tokenizer.ggml.tokens is not an array of strings");
        if (strings->size() > static_cast<size_t>(model_.config_.vocab_size)) {
            refuse(file_, "the vocabulary has " + std::to_string(strings->size()) +
                              " tokens, but token_embd.weight has only " + std::to_string(model_.config_.vocab_size) +
                              " rows");
        }
    }

    void check_copies() const {
        for (const WeightCopy& copy : options_.copies) {
            const bool has_cpus = std::ranges::all_of(copy.cpus, [](int cpu) { return cpu >= 0 && cpu < kMaxCpus; });
            if (copy.cpus.empty() || !has_cpus) {
                throw UsageError("copies: expected the CPUs of node " + std::to_string(copy.node) +
                                 ", each from 0 to " + std::to_string(kMaxCpus - 1));
            }
        }
    }

    void assign_copies() {
        model_.copy_bytes_ = static_cast<int64_t>(copy_bytes(plan_));
        for (size_t i = 0; i < options_.copies.size(); ++i) {
            for (const int cpu : options_.copies[i].cpus) {
                const auto index = static_cast<size_t>(cpu);
                if (index >= model_.copy_of_cpu_.size()) model_.copy_of_cpu_.resize(index + 1);
                model_.copy_of_cpu_[index] = static_cast<int32_t>(i);
            }
        }
    }

    // Those that adapters may change.
    void number_matrices() {
        int32_t id = 0;
        for (LayerWeights& layer : model_.layers_) {
            for (Matrix* matrix : adaptable(layer)) matrix->id = id++;
        }
        for (const TensorPlan::Piece& piece : plan_.pieces()) {
            if (piece.matrix->id < 0 || piece.first_panel > 0) continue;
            std::vector<AdaptableTensor>& tensors = model_.adaptable_tensors_;
            if (tensors.empty() || tensors.back().name != piece.tensor->name) {
                tensors.push_back({piece.tensor->name, {}});
            }
            tensors.back().parts.push_back(piece.matrix);
        }
    }

    const GgufFile& file_;
    const LoadOptions& options_;
    const Family& family_;
    Model& model_;
    TensorPlan plan_;
};

std::shared_ptr<Model> Model::load(const GgufFile& file, const LoadOptions& options) {
    auto model = std::make_shared<Model>();
    FileConfig read = read_config(file, options.context_length);
    model->config_ = std::move(read.config);
    model->kernels_ = options.kernels;
    WeightLoader(file, options, *read.family, *model).load();
    return model;
}

bool Model::has_post_norms() const {
    return std::ranges::any_of(layers_, [](const LayerWeights& layer) {
        return layer.post_attention_norm != nullptr || layer.post_feed_forward_norm != nullptr;
    });
}

void Model::check(const GgufFile& file) {
    Model model;
    FileConfig read = read_config(file, 0);
    model.config_ = std::move(read.config);
    WeightLoader(file, {}, *read.family, model).check();
}

uint64_t Model::decode_bytes() const {
    uint64_t total = ends_.output.num_bytes();
    const auto used = static_cast<size_t>(config_.experts.used);
    for (const LayerWeights& layer : layers_) {
        for (const Matrix* matrix : {&layer.query, &layer.key, &layer.value, &layer.convolution.in,
                                     &layer.attention_output, &layer.mixture.router}) {
            total += matrix->num_bytes();
        }
        total += feed_forward_bytes(layer.feed_forward);
        const std::vector<FeedForward>& experts = layer.mixture.experts;
        // The shared expert is the last one.
        for (size_t i = 0; i < experts.size(); ++i) {
            const bool is_read = i < used || i >= static_cast<size_t>(config_.experts.count);
            if (is_read) total += feed_forward_bytes(experts[i]);
        }
    }
    return total;
}

}  // namespace treadle
