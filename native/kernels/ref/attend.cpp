// Attention over one KV block.
#include <cmath>

#include "half.h"
#include "ref.h"
#include "soft_cap.h"
#include "sum_halves.h"

namespace treadle::ref {

namespace {

float score_of(const AttendArgs* args, int row, int position) {
    const float* q = args->q + row / kQueryTile * kQueryTile * args->head_dim + row % kQueryTile;
    float score[2] = {};
    for (int d = 0; d < args->head_dim; ++d) {
        const float key = float_of_f16(args->k_block[d * kKvBlockTokens + position]);
        score[d % 2] = std::fma(q[d * kQueryTile], key, score[d % 2]);
    }
    const float sum = score[0] + score[1];
    return args->soft_cap.cap > 0.0f ? soft_capped(sum, args->soft_cap) : sum;
}

int first_of(const AttendArgs* args, int row) { return args->first ? args->first[row] : 0; }

// weights[p] = exp(score - max) of the positions in sight; updates max and sum, returns the factor for what came
// before.
float softmax_step(const AttendArgs* args, int row, float* weights) {
    const int first = first_of(args, row), limit = args->limit[row];
    float max = args->max[row];
    for (int p = first; p < limit; ++p) {
        weights[p] = score_of(args, row, p);
        max = std::fmax(max, weights[p]);
    }
    const float correction = exp_f32(args->max[row] - max);
    float lanes[kKvBlockTokens] = {};
    for (int p = first; p < limit; ++p) lanes[p] = weights[p] = exp_f32(weights[p] - max);
    args->max[row] = max;
    args->sum[row] = args->sum[row] * correction + sum_halves(lanes, kKvBlockTokens);
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
            for (int p = first_of(args, row); p < args->limit[row]; ++p) {
                value = std::fma(weights[p], float_of_f16(args->v_block[p * args->head_dim + d]), value);
            }
            acc[d] = value;
        }
    }
}

}  // namespace treadle::ref
