#include "treadle/adapter.h"

#include <cmath>

#include "refuse.h"
#include "tensor_plan.h"
#include "tensor_reader.h"

namespace treadle {
namespace {

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

float alpha_of(const GgufFile& file) {
    const auto alpha = static_cast<float>(file.get_float("adapter.lora.alpha").value_or(0.0));
    if (!std::isfinite(alpha)) refuse(file, "adapter.lora.alpha is not a number");
    return alpha;
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

uint32_t format_in_file(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.tensor(name);
    const uint32_t format = tensor == nullptr ? kF32 : tensor->format;
    if (format != kF32 && format != kF16 && format != kBF16 && format != kQ8_0) {
        refuse(file, "tensor " + quoted(name) + " of an adapter has type " + find_gguf_format(format)->name +
                         ", expected F32, F16, BF16 or Q8_0");
    }
    return format;
}

// How A and B are kept, see LowRank.
uint32_t format_of_a(const Matrix& changed, uint32_t in_file) {
    if (act_format_of(changed.format) == kActQ8) return kQ8_0;
    return in_file == kQ8_0 ? kF32 : in_file;
}

uint32_t format_of_b(const Matrix& changed, uint32_t in_file) {
    if (in_file == kF16 || in_file == kBF16) return in_file;
    return act_format_of(changed.format) == kActQ8 ? kF16 : kF32;
}

}  // namespace

class AdapterLoader {
 public:
    AdapterLoader(const GgufFile& file, const Model& model, Adapter& adapter)
        : file_(file), model_(model), adapter_(adapter), plan_(file) {
        adapter_.changes_.resize(model.layers().size() * kAdaptable);
    }

    void load(const std::vector<int>& cpus, float strength) {
        // All A come first: those of one input follow each other in memory as they do in time.
        const float alpha = alpha_of(file_);
        for (const AdaptableTensor& tensor : model_.adaptable_tensors()) plan_a(tensor, strength, alpha);
        for (const AdaptableTensor& tensor : model_.adaptable_tensors()) plan_b(tensor);
        plan_.refuse_unused_tensors("LoRA adapter of a " + model_.config().architecture);
        if (plan_.matrices().empty()) refuse(file_, "the adapter has no tensors");
        LoadOptions options;
        options.cpus = cpus;
        adapter_.weights_ = read_tensors(file_, plan_, options, "the adapter " + printable(file_.path()));
        for (LowRank& change : adapter_.changes_) {
            if (change.a_id >= 0) change.a = adapter_.changes_[static_cast<size_t>(change.a_id)].a;
        }
    }

 private:
    LowRank& change(const Matrix& matrix) const { return adapter_.changes_[static_cast<size_t>(matrix.id)]; }

    void plan_a(const AdaptableTensor& tensor, float strength, float alpha) {
        const std::string name = tensor.name + ".lora_a";
        const int64_t rank = rank_of(file_, name);
        if (rank == 0) return;
        const Matrix& first = *tensor.parts[0];
        const uint32_t format = format_of_a(first, format_in_file(file_, name));
        plan_.fused_matrix(name, first.columns, {{rank, change(first).a}}, format);
        for (const Matrix* part : tensor.parts) {
            change(*part).a_id = first.id;
            // A file without alpha is meant to be added as it is.
            change(*part).scale = strength * (alpha == 0.0f ? 1.0f : alpha / static_cast<float>(rank));
        }
    }

    void plan_b(const AdaptableTensor& tensor) {
        const Matrix& first = *tensor.parts[0];
        if (change(first).a_id < 0) return;
        const std::string name = tensor.name + ".lora_b";
        std::vector<TensorPlan::Part> parts;
        for (const Matrix* part : tensor.parts) parts.push_back({part->rows, change(*part).b});
        const uint32_t format = format_of_b(first, format_in_file(file_, name));
        plan_.fused_matrix(name, change(first).a.rows, parts, format);
    }

    const GgufFile& file_;
    const Model& model_;
    Adapter& adapter_;
    TensorPlan plan_;
};

std::shared_ptr<Adapter> Adapter::load(const GgufFile& file, std::shared_ptr<const Model> model,
                                       const std::vector<int>& cpus, float strength) {
    if (!std::isfinite(strength)) throw UsageError("the scale of an adapter must be a number");
    check_kind(file, *model);
    auto adapter = std::make_shared<Adapter>();
    AdapterLoader(file, *model, *adapter).load(cpus, strength);
    adapter->model_ = std::move(model);
    return adapter;
}

}  // namespace treadle
