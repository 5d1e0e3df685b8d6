// What the compiler makes of plain products and std::fma at most.
#include <cmath>

#include "dot.h"
#include "ref.h"

namespace treadle::ref {

namespace {

constexpr int kSums = 8;
constexpr int kOpsPerGroup = 2 * 4 * kPanelRows;

// Volatile: what they are must stay unknown, and that the sums are used.
volatile int8_t activation = 2;
volatile float half = 0.5f;
volatile float sink;

}  // namespace

void peak_int8(int64_t num_rounds) {
    uint8_t weights[4 * kPanelRows];
    for (int i = 0; i < 4 * kPanelRows; ++i) weights[i] = static_cast<uint8_t>(i % 2);
    uint32_t total = 0;
    for (int64_t n = 0; n < num_rounds; ++n) {
        int32_t sums[kPanelRows] = {};
        for (int group = 0; group < kPeakOps / kOpsPerGroup; ++group) {
            const int8_t x = activation;
            const int8_t quants[4] = {x, x, x, x};
            dot_group(weights, quants, sums);
        }
        for (const int32_t sum : sums) total += static_cast<uint32_t>(sum);
    }
    sink = static_cast<float>(total);
}

void peak_f32(int64_t num_rounds) {
    float sums[kSums] = {};
    const float a = half;
    for (int64_t n = 0; n < num_rounds * (kPeakOps / (2 * kSums)); ++n) {
        for (float& sum : sums) sum = std::fma(sum, a, 1.0f);
    }
    for (const float sum : sums) sink = sum;
}

}  // namespace treadle::ref
