#include "treadle/adapter.h"

#include <cmath>

#include "refuse.h"
#include "tensor_plan.h"
#include "tensor_reader.h"

namespace treadle {
namespace {

constexpr const char* kNames[kAdaptable] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                            "ffn_gate", "ffn_up", "ffn_down"};

void check_kind(const GgufFile& file, const Model& model) {
    const std::string_view type = file.get_string("general.type").value_or("model");
    const std::string_view kind = file.get_string("adapter.type").value_or("");
    if (type != "adapter" || kind != "lora") {
        refuse(file,
               "general.type is " + quoted(type) + " and adapter.type " + quoted(kind) + ", expected adapter and lora");
    }
    const std::string_view architecture = file.get_string("general.architecture").value_or("");
    if (architecture != model.config().architecture) {
        refuse(file, "the adapter is for models of architecture " + quoted(architecture) + ", this one is " +
                         model.config().architecture);
    }
}

// Of A and B of one change; 0 without a tensor.
int64_t rank_of(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.tensor(name);
    if (tensor == nullptr) return 0;
    const uint64_t rank = tensor->shape.size() == 2 ? tensor->shape[1] : 0;
    if (rank < 1 || rank > kMaxRank) {
        refuse(file, "tensor " + quoted(name) + " has shape " + shape_text(tensor->shape) +
                         ", expected two dimensions and a rank from 1 to " + std::to_string(kMaxRank));
    }
    return static_cast<int64_t>(rank);
}

void expect_float(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.tensor(name);
    if (tensor == nullptr || tensor->format == kF32 || tensor->format == kF16 || tensor->format == kBF16) return;
    refuse(file, "tensor " + quoted(name) + " of an adapter is quantised, expected F32, F16 or BF16");
}

}  // namespace

std::shared_ptr<Adapter> Adapter::load(const GgufFile& file, std::shared_ptr<const Model> model,
                                       const std::vector<int>& cpus, float strength) {
    if (!std::isfinite(strength)) throw UsageError("the scale of an adapter must be a number");
    check_kind(file, *model);
    auto adapter = std::make_shared<Adapter>();
    adapter->changes_.resize(model->layers().size() * kAdaptable);
    const auto alpha = static_cast<float>(file.get_float("adapter.lora.alpha").value_or(0.0));
    if (!std::isfinite(alpha)) refuse(file, "adapter.lora.alpha is not a number");
    TensorPlan plan(file);
    bool is_empty = true;
    for (size_t index = 0; index < model->layers().size(); ++index) {
        LayerWeights layer = model->layers()[index];
        const auto matrices = adaptable(layer);
        for (size_t i = 0; i < matrices.size(); ++i) {
            const Matrix& matrix = *matrices[i];
            const std::string name = "blk." + std::to_string(index) + "." + kNames[i] + ".weight";
            const int64_t rank = matrix.rows == 0 ? 0 : rank_of(file, name + ".lora_a");
            if (rank == 0) continue;
            is_empty = false;
            LowRank& change = adapter->changes_[static_cast<size_t>(matrix.id)];
            for (const char* part : {".lora_a", ".lora_b"}) expect_float(file, name + part);
            plan.matrix(name + ".lora_a", rank, matrix.columns, change.a);
            plan.matrix(name + ".lora_b", matrix.rows, rank, change.b);
            // A file without alpha is meant to be added as it is.
            change.scale = strength * (alpha == 0.0f ? 1.0f : alpha / static_cast<float>(rank));
        }
    }
    plan.refuse_unused_tensors("LoRA adapter of a " + model->config().architecture);
    if (is_empty) refuse(file, "the adapter has no tensors");
    LoadOptions options;
    options.cpus = cpus;
    adapter->weights_ = read_tensors(file, plan, options, "the adapter " + printable(file.path()));
    adapter->model_ = std::move(model);
    return adapter;
}

}  // namespace treadle
