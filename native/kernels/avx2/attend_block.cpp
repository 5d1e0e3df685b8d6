// Attention of query rows over one KV block of 32 positions, four rows at a time so that each K and V vector is
// converted from f16 once for them.
#include "entries.h"
#include "vec.h"

namespace treadle::avx2 {
namespace {

constexpr int kGroupRows = 4;
constexpr int kVectors = kKvBlockTokens / kLanes;

// Rows of one pass: indices into the arrays of AttendArgs, and what the steps hand on.
struct Group {
    int32_t row[kGroupRows];
    int32_t query_at[kGroupRows];  // where the row starts in AttendArgs::q
    float correction[kGroupRows];
    alignas(32) float p[kGroupRows][kKvBlockTokens];  // scores, then weights
};

// p = q * K of R rows for positions 8 * first .. 8 * (first + N) - 1. The chains over even and over odd dims run one
// after the other: side by side their accumulators would not fit the registers.
template <int R, int N>
inline void score_positions(const AttendArgs& args, int first, Group& group) {
    const uint16_t* next_k = args.next_k_block ? args.next_k_block : args.k_block;
    for (int odd = 0; odd < 2; ++odd) {
        __m256 acc[R][N];
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            TREADLE_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
        }
        const uint16_t* k = args.k_block + odd * kKvBlockTokens + kLanes * first;
        const float* q = args.q + odd * kQueryTile;
        for (int32_t d = odd; d < args.head_dim; d += 2, k += 2 * kKvBlockTokens, q += 2 * kQueryTile) {
            if (first == 0) {  // a line of K came in, so a line each of what comes after it: V, and the next block's K
                prefetch<64>(args.v_block + kKvBlockTokens * d);
                prefetch<64>(next_k + kKvBlockTokens * d);
            }
            __m256 key[N];
            TREADLE_UNROLL for (int n = 0; n < N; ++n) key[n] = load_f16(k + kLanes * n);
            TREADLE_UNROLL for (int r = 0; r < R; ++r) {
                const __m256 query = _mm256_set1_ps(q[group.query_at[r]]);
                TREADLE_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_fmadd_ps(query, key[n], acc[r][n]);
            }
        }
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            TREADLE_UNROLL for (int n = 0; n < N; ++n) {
                float* p = group.p[r] + kLanes * (first + n);
                _mm256_store_ps(p, odd ? _mm256_add_ps(_mm256_load_ps(p), acc[r][n]) : acc[r][n]);
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

inline float largest_lane(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Scores of row i of the group to weights exp(score - max), 0 where the row does not see; updates max and sum. What
// lies beyond a limit may be anything, NaN included, so it is blended away rather than multiplied by zero.
inline void soften(const AttendArgs& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const int32_t first = args.first ? args.first[row] : 0, limit = args.limit[row];
    __m256 p[kVectors], seen[kVectors];
    __m256 top_lanes = _mm256_set1_ps(args.max[row]);
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        seen[n] = seen_of(first, limit, n);
        p[n] = _mm256_load_ps(group.p[i] + kLanes * n);
        if (args.soft_cap.cap > 0.0f) p[n] = soft_capped(p[n], args.soft_cap);
        // Of two operands max returns the second if either is NaN, so NaN scores fall out.
        top_lanes = _mm256_max_ps(_mm256_blendv_ps(top_lanes, p[n], seen[n]), top_lanes);
    }
    const float top = largest_lane(top_lanes);
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        p[n] = _mm256_and_ps(seen[n], exp_ps(_mm256_sub_ps(p[n], _mm256_set1_ps(top))));
        _mm256_store_ps(group.p[i] + kLanes * n, p[n]);
    }
    const float correction = _mm256_cvtss_f32(exp_ps(_mm256_set1_ps(args.max[row] - top)));
    const __m256 sums = _mm256_add_ps(_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3]));
    group.correction[i] = correction;
    args.max[row] = top;
    args.sum[row] = args.sum[row] * correction + sum_lanes(sums);
}

// acc += p * V of row r of the group for positions from .. to - 1.
template <int C>
inline void add_edge(const AttendArgs& args, const Group& group, int r, int32_t d, int32_t from, int32_t to,
                     __m256* acc) {
    for (int32_t position = from; position < to; ++position) {
        const __m256 p = _mm256_set1_ps(group.p[r][position]);
        const uint16_t* v = args.v_block + position * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[c] = _mm256_fmadd_ps(p, load_f16(v + kLanes * c), acc[c]);
    }
}

// acc = acc * correction + p * V for 8 * C dims from d on. Between what each row sees alone, before and after, are the
// positions that all rows see.
template <int R, int C>
inline void add_values(const AttendArgs& args, const Group& group, int32_t d) {
    __m256 acc[R][C];
    int32_t all_from = 0, all_see = kKvBlockTokens;
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const int32_t row = group.row[r];
        if (args.limit[row] < all_see) all_see = args.limit[row];
        if (args.first && args.first[row] > all_from) all_from = args.first[row];
        const float* from = args.acc + int64_t{row} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] =
            _mm256_mul_ps(_mm256_loadu_ps(from + kLanes * c), _mm256_set1_ps(group.correction[r]));
    }
    if (all_from > 0) {
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t row = group.row[r], end = args.limit[row] < all_from ? args.limit[row] : all_from;
            add_edge<C>(args, group, r, d, args.first[row], end, acc[r]);
        }
    }
    const uint16_t* v = args.v_block + d;
    for (int32_t position = all_from; position < all_see; ++position) {
        __m256 value[C];
        TREADLE_UNROLL for (int c = 0; c < C; ++c) value[c] = load_f16(v + position * args.head_dim + kLanes * c);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const __m256 p = _mm256_set1_ps(group.p[r][position]);
            TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm256_fmadd_ps(p, value[c], acc[r][c]);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const int32_t row = group.row[r];
        add_edge<C>(args, group, r, d, all_from < all_see ? all_see : all_from, args.limit[row], acc[r]);
        float* to = args.acc + int64_t{row} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) _mm256_storeu_ps(to + kLanes * c, acc[r][c]);
    }
}

template <int R>
void attend_group(const AttendArgs& args, Group& group) {
    score<R>(args, group);
    for (int r = 0; r < R; ++r) soften(args, group, r);
    constexpr int kWide = R <= 2 ? 4 : 2;
    int32_t d = 0;
    for (; d + kWide * kLanes <= args.head_dim; d += kWide * kLanes) add_values<R, kWide>(args, group, d);
    for (; d < args.head_dim; d += kLanes) add_values<R, 1>(args, group, d);
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

}  // namespace treadle::avx2
