// The sum over lanes that norm and attention share.
#pragma once

namespace treadle::ref {
namespace {

// Adds the upper half of the lanes to the lower one until one is left; overwrites them. `num_lanes` is a power of two.
inline float sum_halves(float* lane, int num_lanes) {
    for (int width = num_lanes / 2; width >= 1; width /= 2) {
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    }
    return lane[0];
}

}  // namespace
}  // namespace treadle::ref
