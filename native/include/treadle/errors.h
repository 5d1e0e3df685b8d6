// The exceptions of the native core. The type says who can act; bindings translate each to its Python namesake.
#pragma once

#include <stdexcept>
#include <string>

namespace treadle {

// The caller asked for something that cannot be: a wrong argument, an unknown setting.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The model file is broken, hostile or of a kind this core does not know; the text names file, tensor or key.
struct ModelFileError : std::runtime_error {
    using std::runtime_error::runtime_error;
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
