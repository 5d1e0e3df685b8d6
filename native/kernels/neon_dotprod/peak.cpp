// What sdot and fmla do at most.
#include "entries.h"
#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

// Enough independent sums to hide the latency of one.
enum { kSums = 16, kOpsPerDot = 32, kOpsPerFma = 8 };

}  // namespace

void peak_int8(int64_t num_rounds) {
    int32x4_t sums[kSums];
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = vdupq_n_s32(i);
    const int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(2);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerDot)); ++n) {
        _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) {
            sums[i] = vdotq_s32(sums[i], a, b);
            __asm__ volatile("" : "+w"(sums[i]));
        }
    }
}

void peak_f32(int64_t num_rounds) {
    float32x4_t sums[kSums];
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = vdupq_n_f32(static_cast<float>(i));
    const float32x4_t a = vdupq_n_f32(0.5f), b = vdupq_n_f32(1.0f);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerFma)); ++n) {
        _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) {
            sums[i] = vfmaq_f32(sums[i], a, b);
            __asm__ volatile("" : "+w"(sums[i]));
        }
    }
}

}  // namespace treadle::neon_dotprod
