// Attention over one KV block.
#include <cmath>

#include "half.h"
#include "ref.h"

namespace treadle::ref {

namespace {

// weights[p] = exp(score - max) of the positions in sight; updates max and sum, returns the factor for what came
// before.
float softmax_step(const AttendArgs* args, int row, float* weights) {
    const int limit = args->limit[row];
    float max = args->max[row];
    for (int p = 0; p < limit; ++p) {
        float score = 0.0f;
        for (int d = 0; d < args->head_dim; ++d) {
            score =
                std::fma(args->q[d * kMaxAttendRows + row], float_of_f16(args->k_block[d * kKvBlockTokens + p]), score);
        }
        weights[p] = score;
        max = std::fmax(max, score);
    }
    const float correction = std::exp(args->max[row] - max);
    float sum = args->sum[row] * correction;
    for (int p = 0; p < limit; ++p) {
        weights[p] = std::exp(weights[p] - max);
        sum += weights[p];
    }
    args->max[row] = max;
    args->sum[row] = sum;
    return correction;
}

}  // namespace

void attend_block(const AttendArgs* args) {
    for (int row = 0; row < args->num_rows; ++row) {
        if (args->limit[row] == 0) continue;
        float weights[kKvBlockTokens];
        const float correction = softmax_step(args, row, weights);
        float* acc = args->acc + row * args->head_dim;
        for (int d = 0; d < args->head_dim; ++d) {
            float value = acc[d] * correction;
            for (int p = 0; p < args->limit[row]; ++p) {
                value = std::fma(weights[p], float_of_f16(args->v_block[p * args->head_dim + d]), value);
            }
            acc[d] = value;
        }
    }
}

}  // namespace treadle::ref
