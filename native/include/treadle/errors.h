// The exceptions of the native core. The type says who can act; bindings translate each to its Python namesake.
#pragma once

#include <stdexcept>
#include <string>

namespace treadle {

// The caller asked for something that cannot be: a wrong argument, an unknown setting.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The model file is broken or hostile; the text names file, tensor or key.
struct ModelFileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The model file may be sound, but is of a kind that this core does not run.
struct UnsupportedModelError : ModelFileError {
    using ModelFileError::ModelFileError;
};

// There is not enough of something (memory, blocks); the text says what is needed and what there is.
struct CapacityError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A bug of ours.
struct InternalError : std::logic_error {
    using std::logic_error::logic_error;
};

}  // namespace treadle
