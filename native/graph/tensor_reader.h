// Reads what a TensorPlan asks for into one buffer of packed weights, with all workers.
#pragma once

#include "tensor_plan.h"
#include "treadle/memory.h"
#include "treadle/model.h"

namespace treadle {

// The buffer that the plan's matrices and vectors point into afterwards; `purpose` is named where memory is short.
// Throws ModelFileError, CapacityError and what the progress callback throws.
PageBuffer read_tensors(const GgufFile& file, const TensorPlan& plan, const std::vector<int>& cpus,
                        const std::function<void(uint64_t, uint64_t)>& progress, const std::string& purpose);

}  // namespace treadle
