// Rotary positions as a file asks for them: base, scaling, factors.
#pragma once

#include "config_reader.h"
#include "treadle/model.h"

namespace treadle {

// The table that the keys under `rope.` describe, for `rotary_dims` dims of a head. Throws ModelFileError.
RopeTable read_rope(const ConfigReader& reader, const ModelConfig& config, int32_t rotary_dims);

// Positions that turn by `base` alone.
RopeTable plain_rope(double base, int32_t rotary_dims);

}  // namespace treadle
