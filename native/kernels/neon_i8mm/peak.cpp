// What smmla does at most.
#include "neon_dotprod/vec.h"

#include "entries.h"

namespace treadle::neon_i8mm {
namespace {

// Enough independent sums to hide the latency of one.
enum { kSums = 16, kOpsPerProduct = 64 };

}  // namespace

void peak_int8(int64_t num_rounds) {
    int32x4_t sums[kSums];
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = vdupq_n_s32(i);
    const int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(2);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerProduct)); ++n) {
        _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) {
            sums[i] = vmmlaq_s32(sums[i], a, b);
            __asm__ volatile("" : "+w"(sums[i]));
        }
    }
}

}  // namespace treadle::neon_i8mm
