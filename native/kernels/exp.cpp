#include <cmath>

#include "treadle/kernels.h"

namespace treadle {

float exp_f32(float x) {
    if (std::isnan(x)) return x;
    x = std::fmax(kExpLowest, std::fmin(kExpHighest, x));
    const float n = std::nearbyint(x * kLog2E);
    float r = std::fma(-n, kLn2High, x);
    r = std::fma(-n, kLn2Low, r);
    float p = kExpPoly[0];
    for (int i = 1; i < 5; ++i) p = std::fma(p, r, kExpPoly[i]);
    p = std::fma(p, r * r, r);
    return std::ldexp(p + 1.0f, static_cast<int>(n));
}

}  // namespace treadle
