// The integer part of the ref products.
#pragma once

#include <stdint.h>

#include "formats.h"

namespace treadle::ref {
namespace {

// s[row] += sum over k = 0..3 of w[4 * row + k] * x[k]: what one dot instruction does for 16 rows.
inline void dot_group(const uint8_t* w, const int8_t* x, int32_t* s) {
    for (int r = 0; r < kPanelRows; ++r) {
        s[r] += w[4 * r] * x[0] + w[4 * r + 1] * x[1] + w[4 * r + 2] * x[2] + w[4 * r + 3] * x[3];
    }
}

}  // namespace
}  // namespace treadle::ref
