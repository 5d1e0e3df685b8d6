// Which family a file belongs to, and its hyperparameters.
#pragma once

#include "families/family.h"
#include "treadle/gguf.h"
#include "treadle/model.h"

namespace treadle {

struct FileConfig {
    const Family* family;
    ModelConfig config;  // without vocab_size, which the embedding says
};

// context_length as in LoadOptions. Throws ModelFileError naming the key.
FileConfig read_config(const GgufFile& file, int64_t context_length);

}  // namespace treadle
