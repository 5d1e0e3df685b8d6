#include "tensor_plan.h"

#include <algorithm>

#include "refuse.h"

namespace treadle {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

std::string format_name(const GgufTensor& tensor) {
    const GgufFormat* format = find_gguf_format(tensor.format);
    return format != nullptr ? format->name : std::to_string(tensor.format);
}

std::string runnable_formats() {
    std::string names;
    for (const GgufFormat& format : gguf_formats()) {
        if (block_columns(format.id) > 0) names += (names.empty() ? "" : ", ") + std::string(format.name);
    }
    return names;
}

}  // namespace

std::string shape_text(const std::vector<uint64_t>& shape) {
    std::string text = "[";
    for (const uint64_t dim : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
    return text + "]";
}

const GgufTensor& TensorPlan::require(const std::string& name) {
    const GgufTensor* tensor = file_.tensor(name);
    if (tensor == nullptr) refuse(file_, "tensor " + name + " is missing");
    used_.insert(name);
    return *tensor;
}

void TensorPlan::expect_shape(const GgufTensor& tensor, const std::vector<uint64_t>& expected) const {
    if (tensor.shape == expected) return;
    refuse(file_, "tensor " + quoted(tensor.name) + " has shape " + shape_text(tensor.shape) + ", expected " +
                      shape_text(expected));
}

size_t TensorPlan::reserve(size_t num_bytes) {
    const size_t offset = num_bytes_;
    num_bytes_ += (num_bytes + 63) / 64 * 64;
    return offset;
}

void TensorPlan::matrix(const std::string& name, int64_t rows, int64_t columns, Matrix& target) {
    fused_matrix(name, columns, {{rows, target}});
}

void TensorPlan::stacked_matrices(const std::string& name, int64_t rows, int64_t columns,
                                  std::span<Matrix* const> targets) {
    const GgufTensor& tensor = require(name);
    expect_shape(tensor, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), targets.size()});
    uint64_t file_offset = 0;
    for (Matrix* target : targets) {
        place(tensor, file_offset, rows, columns, tensor.format, *target);
        file_offset += static_cast<uint64_t>(rows * row_bytes(tensor.format, columns));
    }
}

void TensorPlan::fused_matrix(const std::string& name, int64_t columns, const std::vector<Part>& parts,
                              std::optional<uint32_t> format) {
    const GgufTensor& tensor = require(name);
    int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    const bool is_one_row = rows == 1 && tensor.shape.size() == 1;  // some converters drop the dimension
    if (!is_one_row || tensor.shape[0] != static_cast<uint64_t>(columns)) {
        expect_shape(tensor, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)});
    }
    uint64_t file_offset = 0;
    for (const Part& part : parts) {
        place(tensor, file_offset, part.rows, columns, format.value_or(tensor.format), part.target);
        file_offset += static_cast<uint64_t>(part.rows * row_bytes(tensor.format, columns));
    }
}

void TensorPlan::place(const GgufTensor& tensor, uint64_t file_offset, int64_t rows, int64_t columns, uint32_t format,
                       Matrix& target) {
    const int64_t block = block_columns(tensor.format);
    if (block == 0 || columns % block != 0) {
        refuse_unsupported(file_, "tensor " + quoted(tensor.name) + " has type " + format_name(tensor) + " and " +
                                      std::to_string(columns) + " columns; this core runs " + runnable_formats());
    }
    target = {format, rows, columns, columns / block_columns(format) * panel_block_bytes(format), nullptr};
    matrices_.emplace_back(&target, reserve(target.num_bytes()));
    const int64_t step = std::max<int64_t>(1, kPieceBytes / (kPanelRows * row_bytes(tensor.format, columns)));
    for (int64_t first = 0; first < target.num_panels(); first += step) {
        pieces_.push_back({&tensor, &target, first, std::min(step, target.num_panels() - first), file_offset});
    }
    total_file_bytes_ += static_cast<uint64_t>(rows * row_bytes(tensor.format, columns));
}

void TensorPlan::vector(const std::string& name, int64_t count, const float** target) {
    const GgufTensor& tensor = require(name);
    expect_shape(tensor, {static_cast<uint64_t>(count)});
    place(tensor, 0, count, target);
}

void TensorPlan::table(const std::string& name, int64_t rows, int64_t columns, const float** target) {
    const GgufTensor& tensor = require(name);
    expect_shape(tensor, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)});
    place(tensor, 0, rows * columns, target);
}

void TensorPlan::fused_vector(const std::string& name, std::initializer_list<VectorPart> parts) {
    const GgufTensor& tensor = require(name);
    int64_t first = 0;
    for (const VectorPart& part : parts) first += part.count;
    expect_shape(tensor, {static_cast<uint64_t>(first)});
    first = 0;
    for (const VectorPart& part : parts) {
        place(tensor, first, part.count, part.target);
        first += part.count;
    }
}

void TensorPlan::stacked_vectors(const std::string& name, int64_t count, std::span<const float** const> targets) {
    const GgufTensor& tensor = require(name);
    expect_shape(tensor, {static_cast<uint64_t>(count), targets.size()});
    for (size_t i = 0; i < targets.size(); ++i) place(tensor, static_cast<int64_t>(i) * count, count, targets[i]);
}

void TensorPlan::place(const GgufTensor& tensor, int64_t first, int64_t count, const float** target) {
    if (tensor.format != kF32 && tensor.format != kF16 && tensor.format != kBF16) {
        refuse(file_,
               "tensor " + quoted(tensor.name) + " has type " + format_name(tensor) + ", expected F32, F16 or BF16");
    }
    vectors_.push_back({&tensor, target, reserve(static_cast<size_t>(count) * sizeof(float)), first, count});
}

void TensorPlan::optional_vector(const std::string& name, int64_t count, const float** target) {
    if (has(name)) vector(name, count, target);
}

void TensorPlan::skip(const std::string& prefix) {
    for (const GgufTensor& tensor : file_.tensors()) {
        if (tensor.name.starts_with(prefix)) used_.insert(tensor.name);
    }
}

void TensorPlan::refuse_unused_tensors(const std::string& architecture) const {
    for (const GgufTensor& tensor : file_.tensors()) {
        if (used_.count(tensor.name) == 0) {
            refuse_unsupported(file_, "tensor " + quoted(tensor.name) + " is not part of a " + architecture +
                                          " model as this core knows it");
        }
    }
}

}  // namespace treadle
