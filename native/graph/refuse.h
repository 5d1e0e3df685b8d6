// How this room complains about a model file: the path first, whatever bytes it has made printable.
#pragma once

#include <string>

#include "treadle/errors.h"
#include "treadle/gguf.h"
#include "treadle/text.h"

namespace treadle {

[[noreturn]] inline void refuse(const GgufFile& file, const std::string& why) {
    throw ModelFileError(printable(file.path()) + ": " + why);
}

// Another engine may run what this core does not.
[[noreturn]] inline void refuse_unsupported(const GgufFile& file, const std::string& why) {
    throw UnsupportedModelError(printable(file.path()) + ": " + why);
}

}  // namespace treadle
