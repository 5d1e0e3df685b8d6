// Reads what a TensorPlan asks for into one buffer of packed weights, with all workers.
#pragma once

#include "tensor_plan.h"
#include "treadle/memory.h"
#include "treadle/model.h"

namespace treadle {

// The buffer that the plan's matrices and vectors point into afterwards, in its first copy; `purpose` is named where
// memory is short. Throws ModelFileError, CapacityError and what the progress callback throws.
PageBuffer read_tensors(const GgufFile& file, const TensorPlan& plan, const LoadOptions& options,
                        const std::string& purpose);

// How far the copies of LoadOptions::copies are apart; one after the other starts on a page of its own, huge or not.
size_t copy_bytes(const TensorPlan& plan);

}  // namespace treadle
