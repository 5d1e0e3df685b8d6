// One KV block as a step of the online softmax, for groups of up to four query rows.
//
// Scores: a vector holds 16 positions, so K's layout needs no horizontal sums; even and odd dims have their own
// accumulators, which hides the fma latency of a single row and makes 16 accumulators for four. Values: a vector holds
// 16 dims, four of them a pass. A row's operations are the same whatever rows surround it, and nothing behind its limit
// is multiplied into it: 0 * infinity from a stale or broken position would be NaN.
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

constexpr int kGroupRows = 4;

struct Group {
    int32_t row[kGroupRows];                          // row numbers of the call
    alignas(64) float p[kGroupRows][kKvBlockTokens];  // scores, then probabilities
    float correction[kGroupRows];                     // what the earlier blocks' sums are scaled with
};

template <int R>
inline void add_dim(const uint16_t* k, const float* const* q, int32_t d, __m512 (*acc)[2]) {
    const __m512 low = load_f16(k + kKvBlockTokens * d), high = load_f16(k + kKvBlockTokens * d + 16);
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const __m512 x = _mm512_set1_ps(q[r][kMaxAttendRows * d]);
        acc[r][0] = _mm512_fmadd_ps(low, x, acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(high, x, acc[r][1]);
    }
}

// p[r][position] = q . k; requests V meanwhile, one line (64 bytes of 32 * head_dim * 2) per dim.
template <int R>
inline void score(const AttendArgs& args, Group& group) {
    const float* q[R];
    __m512 even[R][2], odd[R][2];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        q[r] = args.q + group.row[r];
        even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm512_setzero_ps();
    }
    const char* v = reinterpret_cast<const char*>(args.v_block);
    for (int32_t d = 0; d < args.head_dim; d += 2) {
        prefetch<128>(v + 64 * d);
        add_dim<R>(args.k_block, q, d, even);
        add_dim<R>(args.k_block, q, d + 1, odd);
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        _mm512_store_ps(group.p[r], _mm512_add_ps(even[r][0], odd[r][0]));
        _mm512_store_ps(group.p[r] + 16, _mm512_add_ps(even[r][1], odd[r][1]));
    }
}

// Scores of row i of the group become probabilities relative to the row's new maximum; max and sum are updated.
inline void soften(const AttendArgs& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const uint32_t seen = static_cast<uint32_t>((uint64_t{1} << args.limit[row]) - 1);
    const __mmask16 seen_low = static_cast<__mmask16>(seen), seen_high = static_cast<__mmask16>(seen >> 16);
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    const __m512 low = _mm512_mask_loadu_ps(none, seen_low, group.p[i]);
    const __m512 high = _mm512_mask_loadu_ps(none, seen_high, group.p[i] + 16);
    // Of two operands max returns the second if either is NaN, so NaN scores fall out.
    const float top = _mm512_reduce_max_ps(_mm512_max_ps(high, _mm512_max_ps(low, _mm512_set1_ps(args.max[row]))));
    const __m512 p_low = _mm512_maskz_mov_ps(seen_low, exp_ps(_mm512_sub_ps(low, _mm512_set1_ps(top))));
    const __m512 p_high = _mm512_maskz_mov_ps(seen_high, exp_ps(_mm512_sub_ps(high, _mm512_set1_ps(top))));
    _mm512_store_ps(group.p[i], p_low);
    _mm512_store_ps(group.p[i] + 16, p_high);
    const float correction = _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(args.max[row] - top)));
    group.correction[i] = correction;
    args.max[row] = top;
    args.sum[row] = args.sum[row] * correction + sum_lanes(_mm512_add_ps(p_low, p_high));
}

// acc = acc * correction + p * V for 16 * C dims from `d` on; `lanes` cuts the last vector of head sizes like 72. With
// four vectors, the next block's K of the same dims is requested meanwhile: 64 lines over 32 positions.
template <int R, int C>
inline void add_values(const AttendArgs& args, const Group& group, int32_t d, __mmask16 lanes) {
    __m512 acc[R][C];
    int32_t all_see = kKvBlockTokens, any_sees = 0;  // positions every row sees, positions some row sees
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const int32_t row = group.row[r], limit = args.limit[row];
        all_see = limit < all_see ? limit : all_see;
        any_sees = limit > any_sees ? limit : any_sees;
        const float* from = args.acc + int64_t{row} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] =
            _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, from + 16 * c), _mm512_set1_ps(group.correction[r]));
    }
    const uint16_t* v = args.v_block + d;
    const uint16_t* next_k = (args.next_k_block ? args.next_k_block : args.k_block) + kKvBlockTokens * d;
    for (int32_t position = 0; position < any_sees; ++position, v += args.head_dim) {
        if constexpr (C == 4) prefetch<128>(next_k + kKvBlockTokens * 2 * position);
        __m512 value[C];
        TREADLE_UNROLL for (int c = 0; c < C; ++c) value[c] =
            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, v + 16 * c));
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            if (position >= all_see && position >= args.limit[group.row[r]]) continue;
            const __m512 p = _mm512_set1_ps(group.p[r][position]);
            TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm512_fmadd_ps(p, value[c], acc[r][c]);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        float* to = args.acc + int64_t{group.row[r]} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) _mm512_mask_storeu_ps(to + 16 * c, lanes, acc[r][c]);
    }
}

template <int R>
void attend_group(const AttendArgs& args, Group& group) {
    score<R>(args, group);
    for (int r = 0; r < R; ++r) soften(args, group, r);
    int32_t d = 0;
    for (; d + 64 <= args.head_dim; d += 64) add_values<R, 4>(args, group, d, 0xFFFF);
    for (; d + 16 <= args.head_dim; d += 16) add_values<R, 1>(args, group, d, 0xFFFF);
    if (d < args.head_dim) add_values<R, 1>(args, group, d, 0x00FF);
}

}  // namespace

void attend_block(const AttendArgs* args) {
    Group group;
    int32_t row = 0;
    while (row < args->num_rows) {
        int size = 0;
        for (; row < args->num_rows && size < kGroupRows; ++row)
            if (args->limit[row] > 0) group.row[size++] = row;
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

}  // namespace treadle::avx512_vnni
