// Attention of query rows over one KV block of 32 positions, four rows at a time so that each K and V vector is
// converted from f16 once for them.
#include "entries.h"
#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

constexpr int kGroupRows = 4;
constexpr int kVectors = kKvBlockTokens / kLanes;

// Rows of one pass: indices into the arrays of AttendArgs, and what the steps hand on.
struct Group {
    int32_t row[kGroupRows];
    int32_t query_at[kGroupRows];  // where the row starts in AttendArgs::q
    float correction[kGroupRows];
    float p[kGroupRows][kKvBlockTokens];  // scores, then weights
};

// 4 * N f16 as N vectors; N is even.
template <int N>
inline void load_f16_vectors(const uint16_t* from, float32x4_t* out) {
    TREADLE_UNROLL for (int n = 0; n < N; n += 2) load_f16_pair(from + kLanes * n, out + n);
}

// p = q * K of R rows for positions 4 * first .. 4 * (first + N) - 1. The chains over even and over odd dims run one
// after the other: side by side their accumulators would fill the registers.
template <int R, int N>
inline void score_positions(const AttendArgs& args, int first, Group& group) {
    const uint16_t* next_k = args.next_k_block ? args.next_k_block : args.k_block;
    for (int odd = 0; odd < 2; ++odd) {
        float32x4_t acc[R][N] = {};
        const uint16_t* k = args.k_block + odd * kKvBlockTokens + kLanes * first;
        const float* q = args.q + odd * kQueryTile;
        for (int32_t d = odd; d < args.head_dim; d += 2, k += 2 * kKvBlockTokens, q += 2 * kQueryTile) {
            if (first == 0) {  // a line of K came in, so a line each of what comes after it: V, and the next block's K
                prefetch<64>(args.v_block + kKvBlockTokens * d);
                prefetch<64>(next_k + kKvBlockTokens * d);
            }
            float32x4_t key[N];
            load_f16_vectors<N>(k, key);
            TREADLE_UNROLL for (int r = 0; r < R; ++r) {
                const float query = q[group.query_at[r]];
                TREADLE_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = vfmaq_n_f32(acc[r][n], key[n], query);
            }
        }
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            TREADLE_UNROLL for (int n = 0; n < N; ++n) {
                float* p = group.p[r] + kLanes * (first + n);
                vst1q_f32(p, odd ? vaddq_f32(vld1q_f32(p), acc[r][n]) : acc[r][n]);
            }
        }
    }
}

template <int R>
inline void score(const AttendArgs& args, Group& group) {
    if constexpr (R <= 2) {
        score_positions<R, kVectors>(args, 0, group);
    } else {
        score_positions<R, kVectors / 2>(args, 0, group);
        score_positions<R, kVectors / 2>(args, kVectors / 2, group);
    }
}

// Scores of row i of the group to weights exp(score - max), 0 where the row does not see; updates max and sum. What
// lies beyond a limit may be anything, NaN included, so it is masked away rather than multiplied by zero.
inline void soften(const AttendArgs& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const int32_t first = args.first ? args.first[row] : 0, limit = args.limit[row];
    float32x4_t p[kVectors];
    uint32x4_t seen[kVectors];
    float32x4_t top_lanes = vdupq_n_f32(args.max[row]);
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        seen[n] = seen_of(first, limit, n);
        p[n] = vld1q_f32(group.p[i] + kLanes * n);
        if (args.soft_cap.cap > 0.0f) p[n] = soft_capped(p[n], args.soft_cap);
        // Of a number and a NaN this maximum is the number.
        top_lanes = vmaxnmq_f32(top_lanes, vbslq_f32(seen[n], p[n], top_lanes));
    }
    const float top = vmaxnmvq_f32(top_lanes);
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        const float32x4_t weight = exp_ps(vsubq_f32(p[n], vdupq_n_f32(top)));
        p[n] = vreinterpretq_f32_u32(vandq_u32(seen[n], vreinterpretq_u32_f32(weight)));
        vst1q_f32(group.p[i] + kLanes * n, p[n]);
    }
    const float correction = vgetq_lane_f32(exp_ps(vdupq_n_f32(args.max[row] - top)), 0);
    for (int width = kVectors / 2; width >= 1; width /= 2) {
        for (int n = 0; n < width; ++n) p[n] = vaddq_f32(p[n], p[n + width]);
    }
    group.correction[i] = correction;
    args.max[row] = top;
    args.sum[row] = args.sum[row] * correction + sum_lanes(p[0]);
}

// acc += p * V of row r of the group for positions from .. to - 1.
template <int C>
inline void add_edge(const AttendArgs& args, const Group& group, int r, int32_t d, int32_t from, int32_t to,
                     float32x4_t* acc) {
    for (int32_t position = from; position < to; ++position) {
        float32x4_t value[C];
        load_f16_vectors<C>(args.v_block + position * args.head_dim + d, value);
        const float p = group.p[r][position];
        TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[c] = vfmaq_n_f32(acc[c], value[c], p);
    }
}

// acc = acc * correction + p * V for 4 * C dims from d on. Between what each row sees alone, before and after, are the
// positions that all rows see.
template <int R, int C>
inline void add_values(const AttendArgs& args, const Group& group, int32_t d) {
    float32x4_t acc[R][C], value[C];
    int32_t all_from = 0, all_see = kKvBlockTokens;
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const int32_t row = group.row[r];
        if (args.limit[row] < all_see) all_see = args.limit[row];
        if (args.first && args.first[row] > all_from) all_from = args.first[row];
        const float* from = args.acc + int64_t{row} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] =
            vmulq_n_f32(vld1q_f32(from + kLanes * c), group.correction[r]);
    }
    if (all_from > 0) {
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t row = group.row[r], end = args.limit[row] < all_from ? args.limit[row] : all_from;
            add_edge<C>(args, group, r, d, args.first[row], end, acc[r]);
        }
    }
    const uint16_t* v = args.v_block + d;
    for (int32_t position = all_from; position < all_see; ++position) {
        load_f16_vectors<C>(v + position * args.head_dim, value);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const float p = group.p[r][position];
            TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = vfmaq_n_f32(acc[r][c], value[c], p);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const int32_t row = group.row[r];
        add_edge<C>(args, group, r, d, all_from < all_see ? all_see : all_from, args.limit[row], acc[r]);
        float* to = args.acc + int64_t{row} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) vst1q_f32(to + kLanes * c, acc[r][c]);
    }
}

template <int R>
void attend_group(const AttendArgs& args, Group& group) {
    score<R>(args, group);
    for (int r = 0; r < R; ++r) soften(args, group, r);
    constexpr int kWide = R <= 2 ? 8 : 4;
    int32_t d = 0;
    for (; d + kWide * kLanes <= args.head_dim; d += kWide * kLanes) add_values<R, kWide>(args, group, d);
    for (; d < args.head_dim; d += 2 * kLanes) add_values<R, 2>(args, group, d);
}

}  // namespace

void attend_block(const AttendArgs* args) {
    Group group;
    int32_t row = 0;
    while (row < args->num_rows) {
        int size = 0;
        for (; row < args->num_rows && size < kGroupRows; ++row) {
            if (args->limit[row] == 0) continue;
            group.query_at[size] = row / kQueryTile * kQueryTile * args->head_dim + row % kQueryTile;
            group.row[size++] = row;
        }
        switch (size) {
            case 1:
                attend_group<1>(*args, group);
                break;
            case 2:
                attend_group<2>(*args, group);
                break;
            case 3:
                attend_group<3>(*args, group);
                break;
            case 4:
                attend_group<4>(*args, group);
                break;
            default:
                break;
        }
    }
}

}  // namespace treadle::neon_dotprod
