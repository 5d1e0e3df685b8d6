// The extension module treadle._native: registers the rooms and turns native errors into treadle.errors.
#include "module.h"

#include <cstring>

#include "treadle/errors.h"

namespace nb = nanobind;

namespace {

void raise_as(const char* python_name, const char* message) {
    nb::object type = nb::module_::import_("treadle.errors").attr(python_name);
    // A path or name in the message may be no UTF-8, which must not hide the error.
    nb::object text =
        nb::steal(PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "backslashreplace"));
    PyErr_SetObject(type.ptr(), text.ptr());
}

void translate(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const treadle::UsageError& e) {
        raise_as("UsageError", e.what());
    } catch (const treadle::UnsupportedModelError& e) {
        raise_as("UnsupportedModelError", e.what());
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
    treadle::bindings::bind_limit_probe(m);
}
