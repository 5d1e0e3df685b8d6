// Rotary positions as a file asks for them: base, scaling, factors.
#pragma once

#include "config_reader.h"
#include "treadle/model.h"

namespace treadle {

// Adds the table that the keys under `rope.` describe, for `rotary_dims` dims of a head. Throws ModelFileError.
void read_rope(const ConfigReader& reader, ModelConfig& config, int32_t rotary_dims);

// Tensors that read_rope() may have read.
inline constexpr const char* kRopeFactors = "rope_freqs.weight";
inline constexpr const char* kLongRopeFactors = "rope_factors_long.weight";
inline constexpr const char* kShortRopeFactors = "rope_factors_short.weight";

// Positions that turn by `base` alone.
RopeTable plain_rope(double base, int32_t rotary_dims);

}  // namespace treadle
