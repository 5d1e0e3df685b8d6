// What vpdpbusd and vfmadd do at most.
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

// Enough independent sums to hide the latency of one.
enum { kSums = 16, kOpsPerDot = 128, kOpsPerFma = 32 };

}  // namespace

void peak_int8(int64_t num_rounds) {
    __m512i sums[kSums];
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_epi32(i);
    const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerDot)); ++n) {
        _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) {
            sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
            __asm__ volatile("" : "+v"(sums[i]));
        }
    }
}

void peak_f32(int64_t num_rounds) {
    __m512 sums[kSums];
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerFma)); ++n) {
        _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) {
            sums[i] = _mm512_fmadd_ps(sums[i], a, b);
            __asm__ volatile("" : "+v"(sums[i]));
        }
    }
}

}  // namespace treadle::avx512_vnni
