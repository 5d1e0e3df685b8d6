// Attention over one q8_0 KV block.
#include <algorithm>
#include <cmath>

#include "half.h"
#include "ref.h"
#include "soft_cap.h"
#include "sum_halves.h"

namespace treadle::ref {

namespace {

// The scale of group `group` and position `position`, behind the bytes of K or V.
float scale_of(const uint8_t* half_block, int32_t head_dim, int group, int position) {
    uint16_t scale;
    memcpy(&scale, half_block + (head_dim + 2 * group) * kKvBlockTokens + 2 * position, sizeof scale);
    return float_of_f16(scale);
}

float score_of(const AttendQ8Args* args, int row, int position) {
    const ActTile& tile = args->q[row / kQueryTile];
    float score = 0.0f;
    for (int group = 0; group < args->head_dim / 32; ++group) {
        int32_t sum = 0;
        for (int d = 32 * group; d < 32 * group + 32; ++d) {
            const int key = args->k_block[d / 4 * 4 * kKvBlockTokens + 4 * position + d % 4] - 128;
            sum += key * tile.q[d / 4 * 4 * kQueryTile + row % kQueryTile * 4 + d % 4];
        }
        const float scaled = static_cast<float>(sum) * scale_of(args->k_block, args->head_dim, group, position);
        score = std::fma(scaled, tile.scale[group * kQueryTile + row % kQueryTile], score);
    }
    return args->soft_cap.cap > 0.0f ? soft_capped(score, args->soft_cap) : score;
}

int first_of(const AttendQ8Args* args, int row) { return args->first ? args->first[row] : 0; }

// How the row's earlier sums and this block's are scaled when they meet.
struct Meeting {
    float old, now;
};

// weights[p] = exp(score - the block's maximum) of the positions in sight; updates max and sum.
Meeting softmax_step(const AttendQ8Args* args, int row, float* weights) {
    const int first = first_of(args, row), limit = args->limit[row];
    float block_max = -INFINITY;
    for (int p = first; p < limit; ++p) {
        weights[p] = score_of(args, row, p);
        block_max = std::fmax(block_max, weights[p]);
    }
    const float top = std::fmax(args->max[row], block_max);
    const Meeting meeting = {exp_f32(args->max[row] - top), exp_f32(block_max - top)};
    float lanes[kKvBlockTokens] = {};
    for (int p = first; p < limit; ++p) lanes[p] = weights[p] = exp_f32(weights[p] - block_max);
    args->max[row] = top;
    args->sum[row] = args->sum[row] * meeting.old + sum_halves(lanes, kKvBlockTokens) * meeting.now;
    return meeting;
}

void add_group(const AttendQ8Args* args, int row, int group, const float* weights, Meeting meeting) {
    const int first = first_of(args, row), limit = args->limit[row];
    float scales[kKvBlockTokens];
    uint32_t largest_bits = 0;
    for (int p = first; p < limit; ++p) {
        scales[p] = scale_of(args->v_block, args->head_dim, group, p);
        largest_bits = std::max(largest_bits, bits_of_float(scales[p]));
    }
    const float largest = float_of_bits(largest_bits);
    const float inverse = largest > 0.0f ? 1.0f / largest : 0.0f;
    int32_t units[kKvBlockTokens];
    for (int p = first; p < limit; ++p) {
        const float exact = (weights[p] * kMaxWeight) * (scales[p] * inverse);
        units[p] = exact > 0.0f ? static_cast<int32_t>(std::nearbyint(exact)) : 0;
    }
    const float factor = (meeting.now * kUnitWeight) * largest;
    for (int d = 32 * group; d < 32 * group + 32; ++d) {
        int32_t sum = 0;
        for (int p = first; p < limit; ++p) {
            sum += units[p] * static_cast<int8_t>(args->v_block[p / 2 * 2 * args->head_dim + 2 * d + p % 2]);
        }
        float& acc = args->acc[row * args->head_dim + d];
        acc = std::fma(static_cast<float>(sum), factor, acc * meeting.old);
    }
}

}  // namespace

void attend_block_q8_0(const AttendQ8Args* args) {
    for (int row = 0; row < args->num_rows; ++row) {
        if (args->limit[row] == 0) continue;
        float weights[kKvBlockTokens];
        const Meeting meeting = softmax_step(args, row, weights);
        for (int group = 0; group < args->head_dim / 32; ++group) add_group(args, row, group, weights, meeting);
    }
}

}  // namespace treadle::ref
