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

// Throws ModelFileError naming the key.
FileConfig read_config(const GgufFile& file);

}  // namespace treadle
