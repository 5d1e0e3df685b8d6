// What vpmaddubsw and vfmadd do at most.
#include "entries.h"
#include "vec.h"

namespace treadle::avx2 {
namespace {

// Enough independent sums to hide the latency of one, and registers for what they multiply.
enum { kSums = 12, kOpsPerDot = 64, kOpsPerFma = 16 };

}  // namespace

// Sums stay int16, as those of four-bit weights do for a whole sub-block.
void peak_int8(int64_t num_rounds) {
    __m256i sums[kSums];
    _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_epi16(static_cast<int16_t>(i));
    __m256i a = _mm256_set1_epi8(1);
    const __m256i b = _mm256_set1_epi8(2);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerDot)); ++n) {
        _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) {
            __asm__ volatile("" : "+x"(a));  // or the product would be computed once
            sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(a, b));
            __asm__ volatile("" : "+x"(sums[i]));
        }
    }
}

void peak_f32(int64_t num_rounds) {
    __m256 sums[kSums];
    _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (kSums * kOpsPerFma)); ++n) {
        _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) {
            sums[i] = _mm256_fmadd_ps(sums[i], a, b);
            __asm__ volatile("" : "+x"(sums[i]));
        }
    }
}

}  // namespace treadle::avx2
