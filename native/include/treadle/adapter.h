// A low-rank adapter (LoRA, Hu et al. 2021): what a fine-tuned model adds to the products of another one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "treadle/gguf.h"
#include "treadle/memory.h"
#include "treadle/model.h"

namespace treadle {

// W x becomes W x + scale * B (A x). A and B are as their file has them where W is of floats; where it is quantised,
// and its inputs with it, A is rounded to eight bits and B to sixteen.
struct LowRank {
    Matrix a;  // [rank][columns of W]; no rows where the adapter leaves W alone
    Matrix b;  // [rows of W][rank]
    float scale = 1.0f;
    int32_t a_id = -1;  // Matrix::id of the first of those that have this A: one, or the parts of a fused tensor
};

constexpr int64_t kMaxRank = 256;

class Adapter {
 public:
    // Checks every tensor against the model before the first is read. `strength` multiplies what the file says. Throws
    // ModelFileError, CapacityError, UsageError.
    static std::shared_ptr<Adapter> load(const GgufFile& file, std::shared_ptr<const Model> model,
                                         const std::vector<int>& cpus, float strength);

    const Model& model() const { return *model_; }
    const LowRank& change(int32_t matrix_id) const { return changes_[static_cast<size_t>(matrix_id)]; }
    uint64_t num_bytes() const { return weights_.num_bytes(); }

 private:
    friend class AdapterLoader;
    std::shared_ptr<const Model> model_;
    PageBuffer weights_;
    std::vector<LowRank> changes_;  // by Matrix::id
};

}  // namespace treadle
