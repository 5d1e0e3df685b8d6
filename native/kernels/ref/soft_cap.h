// The soft cap that logits and the scores of attention share.
#pragma once

#include "treadle/kernels.h"

namespace treadle::ref {
namespace {

inline float soft_capped(float x, SoftCap cap) {
    const float y = x * cap.inverse;
    return cap.cap * (1.0f - 2.0f / (exp_f32(y + y) + 1.0f));
}

}  // namespace
}  // namespace treadle::ref
