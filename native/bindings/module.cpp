// The extension module treadle._native: registers the rooms and turns native errors into treadle.errors.
#include "module.h"

#include "treadle/errors.h"

namespace nb = nanobind;

namespace {

void raise_as(const char* python_name, const char* message) {
    nb::object type = nb::module_::import_("treadle.errors").attr(python_name);
    PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const treadle::UsageError& e) {
        raise_as("UsageError", e.what());
    } catch (const treadle::ModelFileError& e) {
        raise_as("ModelFileError", e.what());
    } catch (const treadle::CapacityError& e) {
        raise_as("CapacityError", e.what());
    } catch (const treadle::InternalError& e) {
        raise_as("InternalError", e.what());
    }
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The native core of Treadle.";
    nb::register_exception_translator(translate);
    treadle::bindings::bind_gguf(m);
    treadle::bindings::bind_kernels(m);
    treadle::bindings::bind_sampler(m);
    treadle::bindings::bind_runtime(m);
}
