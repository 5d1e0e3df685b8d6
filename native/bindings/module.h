// Each binding file registers one room of the core; module.cpp calls them in order.
#pragma once

#include <nanobind/nanobind.h>

namespace treadle::bindings {

void bind_gguf(nanobind::module_& m);         // GgufFile
void bind_kernels(nanobind::module_& m);      // the submodule `kernels`: kernel entry points for tests and benchmarks
void bind_sampler(nanobind::module_& m);      // Sampler, SampleResult
void bind_runtime(nanobind::module_& m);      // Model, Runtime
void bind_limit_probe(nanobind::module_& m);  // LimitProbe

}  // namespace treadle::bindings
