// Each binding file registers one room of the core; module.cpp calls them in order.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "treadle/kernels.h"

namespace treadle::bindings {

// The kernel table of this name, the best one for an empty name; throws UsageError with the names there are.
const KernelTable* choose_kernels(const std::string& isa);

void bind_gguf(nanobind::module_& m);         // GgufFile
void bind_kernels(nanobind::module_& m);      // the submodule `kernels`: kernel entry points for tests and benchmarks
void bind_sampler(nanobind::module_& m);      // Sampler, SampleResult
void bind_runtime(nanobind::module_& m);      // Model, Runtime
void bind_limit_probe(nanobind::module_& m);  // LimitProbe, LatencyProbe

}  // namespace treadle::bindings
