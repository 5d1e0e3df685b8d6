// treadle._native.GgufFile: the container as Python objects.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "module.h"
#include "treadle/gguf.h"

namespace nb = nanobind;

namespace treadle::bindings {

namespace {

// The reader has checked that every string is UTF-8.
nb::object text(std::string_view view) {
    return nb::steal(PyUnicode_FromStringAndSize(view.data(), static_cast<Py_ssize_t>(view.size())));
}

nb::object to_python(bool value) { return nb::bool_(value); }
nb::object to_python(uint64_t value) { return nb::int_(value); }
nb::object to_python(int64_t value) { return nb::int_(value); }
nb::object to_python(double value) { return nb::float_(value); }
nb::object to_python(std::string_view value) { return text(value); }
nb::object to_python(const GgufValue& value);

nb::object to_python(const std::shared_ptr<GgufArray>& array) {
    return std::visit(
        [](const auto& items) -> nb::object {
            nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(items.size())));
            if (!list.is_valid()) nb::raise_python_error();
            Py_ssize_t index = 0;
            for (const auto& item : items) {
                nb::object element = to_python(item);
                if (!element.is_valid()) nb::raise_python_error();
                PyList_SET_ITEM(list.ptr(), index++, element.release().ptr());
            }
            return list;
        },
        array->items);
}

nb::object to_python(const GgufValue& value) {
    return std::visit([](const auto& held) { return to_python(held); }, value);
}

nb::dict metadata(const GgufFile& file) {
    nb::dict result;
    for (const auto& [key, value] : file.metadata()) result[text(key)] = to_python(value);
    return result;
}

nb::list tensors(const GgufFile& file) {
    nb::list result;
    for (const GgufTensor& tensor : file.tensors()) {
        nb::list shape;
        for (const uint64_t dim : tensor.shape) shape.append(dim);
        result.append(nb::make_tuple(text(tensor.name), tensor.format, nb::tuple(shape), tensor.num_bytes));
    }
    return result;
}

// Paths are bytes on POSIX: os.fsencode and os.fsdecode keep names that are not UTF-8 intact.
std::shared_ptr<GgufFile> open_path(nb::handle path) {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) nb::raise_python_error();
    const nb::bytes name = nb::steal<nb::bytes>(encoded);
    const std::string native_path(name.c_str(), name.size());
    nb::gil_scoped_release release;
    return GgufFile::open(native_path);
}

nb::object path_of(const GgufFile& file) {
    const std::string& path = file.path();
    return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

nb::bytes read_tensor(const GgufFile& file, const std::string& name, uint64_t offset, uint64_t count) {
    const GgufTensor* tensor = file.tensor(name);
    if (tensor == nullptr) throw nb::key_error(name.c_str());
    if (offset > tensor->num_bytes || count > tensor->num_bytes - offset) throw nb::index_error("outside the tensor");
    nb::bytes data = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count)));
    if (!data.is_valid()) nb::raise_python_error();
    auto* out = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(data.ptr()));
    nb::gil_scoped_release release;
    file.read(*tensor, offset, count, out);
    return data;
}

}  // namespace

void bind_gguf(nb::module_& m) {
    nb::class_<GgufFile>(m, "GgufFile", "A GGUF file, or all shards of a split model, checked on opening.")
        .def_static("open", &open_path, nb::arg("path"), "Open a file given as str, bytes or PathLike.")
        .def_prop_ro("path", &path_of)
        .def_prop_ro("file_bytes", &GgufFile::file_bytes)
        .def("metadata", &metadata, "A new dict of every key in file order; arrays are lists.")
        .def("tensors", &tensors,
             "(name, format_id, shape with the contiguous dimension first, num_bytes) of each tensor.")
        .def("read", &read_tensor, nb::arg("name"), nb::arg("offset"), nb::arg("count"), "Bytes of a tensor's data.");
    nb::dict names;
    for (const GgufFormat& format : gguf_formats()) names[nb::int_(format.id)] = format.name;
    m.attr("GGUF_FORMATS") = names;
}

}  // namespace treadle::bindings
