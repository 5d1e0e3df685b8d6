// Values of a file in another format than it has them in.
#pragma once

#include <cstdint>

namespace treadle {

// From F32, F16, BF16 or Q8_0 to F32, F16 or Q8_0, both laid out as in GGUF files; of Q8_0 whole blocks. Rounds to
// nearest even. What is too large for F16 becomes infinity, and a block of Q8_0 that cannot have its largest value,
// NaN.
void convert_rows(uint32_t from, const uint8_t* in, uint32_t to, int64_t count, uint8_t* out);

}  // namespace treadle
