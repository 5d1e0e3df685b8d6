// Which tensors a model takes from its file and where they go: everything is checked and laid out here before the first
// byte is read. Reading and packing is the loader's job (weights.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "treadle/gguf.h"
#include "treadle/model.h"

namespace treadle {

class TensorPlan {
 public:
    struct Vector {
        const GgufTensor* tensor;
        const float** target;
        size_t offset;
        int64_t first, count;  // of the tensor's values
    };
    // Panels of one matrix that one worker reads at once.
    struct Piece {
        const GgufTensor* tensor;
        const Matrix* matrix;
        int64_t first_panel, num_panels;
        uint64_t file_offset;  // of the matrix's first row in the tensor
    };

    explicit TensorPlan(const GgufFile& file) : file_(file) {}

    // Targets must stay where they are until the loader has filled them. All throw ModelFileError naming the tensor.
    void matrix(const std::string& name, int64_t rows, int64_t columns, Matrix& target);
    // A tensor whose rows are those of several matrices, one after the other, which are kept as the file has them or
    // converted to a format (convert_rows.h).
    struct Part {
        int64_t rows;
        Matrix& target;
    };
    void fused_matrix(const std::string& name, int64_t columns, const std::vector<Part>& parts,
                      std::optional<uint32_t> format = {});
    void vector(const std::string& name, int64_t count, const float** target);
    // Rows one after the other.
    void table(const std::string& name, int64_t rows, int64_t columns, const float** target);
    // One vector after the other in one tensor.
    struct VectorPart {
        int64_t count;
        const float** target;
    };
    void fused_vector(const std::string& name, std::initializer_list<VectorPart> parts);
    // One matrix, or vector, after the other in a tensor of one more dimension: those of all experts.
    void stacked_matrices(const std::string& name, int64_t rows, int64_t columns, std::span<Matrix* const> targets);
    void stacked_vectors(const std::string& name, int64_t count, std::span<const float** const> targets);
    void optional_vector(const std::string& name, int64_t count, const float** target);
    // The tensor, for those that are read elsewhere or must not be missing.
    const GgufTensor& require(const std::string& name);
    bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }
    // Its contents have been read already, if it is there.
    void mark_used(const std::string& name) { used_.insert(name); }

    // Nor are tensors whose names begin so.
    void skip(const std::string& prefix);

    // A tensor we would not use means a model that computes something else than we do: refuse instead of answering
    // wrongly.
    void refuse_unused_tensors(const std::string& architecture) const;

    size_t num_bytes() const { return num_bytes_; }  // of all targets
    uint64_t total_file_bytes() const { return total_file_bytes_; }
    const std::vector<std::pair<Matrix*, size_t>>& matrices() const { return matrices_; }  // with their offsets
    const std::vector<Vector>& vectors() const { return vectors_; }
    const std::vector<Piece>& pieces() const { return pieces_; }

 private:
    void place(const GgufTensor& tensor, uint64_t file_offset, int64_t rows, int64_t columns, uint32_t format,
               Matrix& target);
    void place(const GgufTensor& tensor, int64_t first, int64_t count, const float** target);
    void expect_shape(const GgufTensor& tensor, const std::vector<uint64_t>& expected) const;
    size_t reserve(size_t num_bytes);

    const GgufFile& file_;
    size_t num_bytes_ = 0;
    uint64_t total_file_bytes_ = 0;
    std::set<std::string> used_;
    std::vector<std::pair<Matrix*, size_t>> matrices_;
    std::vector<Vector> vectors_;
    std::vector<Piece> pieces_;
};

// Bytes of one row as GGUF files have it.
inline int64_t row_bytes(uint32_t format, int64_t columns) {
    return columns / block_columns(format) * row_block_bytes(format);
}

std::string shape_text(const std::vector<uint64_t>& shape);

}  // namespace treadle
