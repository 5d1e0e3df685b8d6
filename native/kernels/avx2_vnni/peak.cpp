// What vpdpbusd does at most on YMM registers.
#include "avx2/vec.h"

#include "entries.h"

namespace treadle::avx2_vnni {
namespace {

// Enough independent sums to hide the latency of one, and registers for what they multiply.
enum { kSums = 12, kOpsPerDot = 64 };

}  // namespace

void peak_int8(int64_t num_rounds) {
    __m256i sums[kSums];
    _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_epi32(i);
    const __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerDot)); ++n) {
        _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) {
            sums[i] = _mm256_dpbusd_avx_epi32(sums[i], a, b);
            __asm__ volatile("" : "+x"(sums[i]));
        }
    }
}

}  // namespace treadle::avx2_vnni
