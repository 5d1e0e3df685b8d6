// One KV block as a step of the online softmax, for groups of up to eight query rows.
//
// Scores: a vector holds 16 positions, so K's layout needs no horizontal sums. Values: a vector holds 16 dims. Both
// keep about 16 accumulators, enough to hide the fma latency, and convert K and V from f16 once a group. A row's
// operations are the same whatever rows surround it, and nothing behind its limit is multiplied into it: 0 * infinity
// from a stale or broken position would be NaN.
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

constexpr int kGroupRows = 8;

struct Group {
    int32_t row[kGroupRows];                          // row numbers of the call
    const float* q[kGroupRows];                       // first dim of each row's query
    alignas(64) float p[kGroupRows][kKvBlockTokens];  // scores, then probabilities
    alignas(32) float max[kGroupRows];                // after this block
    alignas(32) float correction[kGroupRows];         // what the earlier blocks' sums are scaled with
    // Every row sees all_from .. all_see - 1 if that is anything, some row any_from .. any_sees - 1.
    int32_t any_from, all_from, all_see, any_sees;
    bool corrects;  // some correction is not 1
};

template <int R>
inline void add_dim(const uint16_t* k, const float* const* q, int32_t d, __m512 (*acc)[2]) {
    const __m512 low = load_f16(k + kKvBlockTokens * d), high = load_f16(k + kKvBlockTokens * d + 16);
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const __m512 x = _mm512_set1_ps(q[r][kQueryTile * d]);
        acc[r][0] = _mm512_fmadd_ps(low, x, acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(high, x, acc[r][1]);
    }
}

// p[r][position] = q . k; requests V meanwhile, one line (64 bytes of 32 * head_dim * 2) per dim. Up to four rows, even
// and odd dims go side by side; more rows hide the latency by themselves and would not leave the registers for it.
template <int R>
inline void score(const AttendArgs& args, Group& group) {
    const char* v = reinterpret_cast<const char*>(args.v_block);
    __m512 even[R][2], odd[R][2];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm512_setzero_ps();
    }
    if constexpr (R <= 4) {
        for (int32_t d = 0; d < args.head_dim; d += 2) {
            prefetch<128>(v + 64 * d);
            add_dim<R>(args.k_block, group.q, d, even);
            add_dim<R>(args.k_block, group.q, d + 1, odd);
        }
    } else {
        for (int32_t d = 0; d < args.head_dim; d += 2) {
            prefetch<128>(v + 64 * d);
            add_dim<R>(args.k_block, group.q, d, even);
        }
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            _mm512_store_ps(group.p[r], even[r][0]);
            _mm512_store_ps(group.p[r] + 16, even[r][1]);
        }
        for (int32_t d = 1; d < args.head_dim; d += 2) add_dim<R>(args.k_block, group.q, d, odd);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            even[r][0] = _mm512_load_ps(group.p[r]);
            even[r][1] = _mm512_load_ps(group.p[r] + 16);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        _mm512_store_ps(group.p[r], _mm512_add_ps(even[r][0], odd[r][0]));
        _mm512_store_ps(group.p[r] + 16, _mm512_add_ps(even[r][1], odd[r][1]));
    }
}

inline void cap_scores(SoftCap cap, Group& group, int num_rows) {
    for (int i = 0; i < num_rows; ++i) {
        for (float* p = group.p[i]; p < group.p[i] + kKvBlockTokens; p += 16) {
            _mm512_store_ps(p, soft_capped(_mm512_load_ps(p), cap));
        }
    }
}

// The rows' new maxima, and the corrections of what they have summed up so far, all rows in one vector.
inline void raise_maxima(const AttendArgs& args, Group& group, int num_rows) {
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    alignas(64) float before[16] = {};
    for (int i = 0; i < num_rows; ++i) {
        const uint32_t seen = seen_by(args.first, args.limit, group.row[i]);
        const __m512 low = _mm512_mask_loadu_ps(none, static_cast<__mmask16>(seen), group.p[i]);
        const __m512 high = _mm512_mask_loadu_ps(none, static_cast<__mmask16>(seen >> 16), group.p[i] + 16);
        before[i] = args.max[group.row[i]];
        // Of two operands max returns the second if either is NaN, so NaN scores fall out.
        const __m512 top = _mm512_max_ps(high, _mm512_max_ps(low, _mm512_set1_ps(before[i])));
        group.max[i] = _mm512_reduce_max_ps(top);
    }
    const __mmask16 rows = static_cast<__mmask16>((1u << num_rows) - 1);
    const __m512 max = _mm512_maskz_loadu_ps(rows, group.max);
    const __m512 correction = exp_ps(_mm512_sub_ps(_mm512_load_ps(before), max));
    _mm512_mask_storeu_ps(group.correction, rows, correction);
    group.corrects = _mm512_mask_cmp_ps_mask(rows, correction, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) != 0;
}

// Scores of row i of the group become probabilities relative to the row's new maximum; max and sum are updated.
inline void soften(const AttendArgs& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const uint32_t seen = seen_by(args.first, args.limit, row);
    const __m512 max = _mm512_set1_ps(group.max[i]);
    const __m512 low = exp_ps(_mm512_sub_ps(_mm512_load_ps(group.p[i]), max));
    const __m512 high = exp_ps(_mm512_sub_ps(_mm512_load_ps(group.p[i] + 16), max));
    const __m512 p_low = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen), low);
    const __m512 p_high = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> 16), high);
    _mm512_store_ps(group.p[i], p_low);
    _mm512_store_ps(group.p[i] + 16, p_high);
    args.max[row] = group.max[i];
    args.sum[row] = args.sum[row] * group.correction[i] + sum_lanes(_mm512_add_ps(p_low, p_high));
}

// Requests the lines of the next block's K that belong to dims d .. d + 16 * C - 1, a part per position.
template <int C>
inline void prefetch_next_k(const AttendArgs& args, int32_t d, int32_t position) {
    const uint16_t* next_k = args.next_k_block ? args.next_k_block : args.k_block;
    if constexpr (C == 4) prefetch<128>(next_k + kKvBlockTokens * (d + 2 * position));
    if constexpr (C == 2) prefetch<64>(next_k + kKvBlockTokens * (d + position));
}

template <bool kHalf>
inline __m512 load_value(const uint16_t* v) {
    if constexpr (kHalf)
        return _mm512_cvtph_ps(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v))));
    return load_f16(v);
}

// acc += p * V for positions from .. to - 1, of which not every row may see all.
template <int R, int C, bool kHalf>
inline void add_edge(const AttendArgs& args, const Group& group, int32_t d, int32_t from, int32_t to,
                     __m512 (*acc)[C]) {
    for (int32_t position = from; position < to; ++position) {
        const uint16_t* v = args.v_block + int64_t{position} * args.head_dim + d;
        __m512 value[C];
        TREADLE_UNROLL for (int c = 0; c < C; ++c) value[c] = load_value<kHalf>(v + 16 * c);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            if (position >= args.limit[group.row[r]]) continue;
            if (args.first && position < args.first[group.row[r]]) continue;
            const __m512 p = _mm512_set1_ps(group.p[r][position]);
            TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm512_fmadd_ps(p, value[c], acc[r][c]);
        }
    }
}

// acc = acc * correction + p * V for 16 * C dims from `d` on. kHalf: only eight, the last ones of head sizes like 72.
template <int R, int C, bool kHalf = false>
inline void add_values(const AttendArgs& args, const Group& group, int32_t d) {
    constexpr __mmask16 lanes = kHalf ? 0x00FF : 0xFFFF;
    __m512 acc[R][C];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const float* from = args.acc + int64_t{group.row[r]} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm512_maskz_loadu_ps(lanes, from + 16 * c);
    }
    if (group.corrects) {
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const __m512 correction = _mm512_set1_ps(group.correction[r]);
            TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm512_mul_ps(acc[r][c], correction);
        }
    }
    int32_t position = group.all_from < group.any_sees ? group.all_from : group.any_sees;
    if (group.any_from < position) add_edge<R, C, kHalf>(args, group, d, group.any_from, position, acc);
    const uint16_t* v = args.v_block + int64_t{position} * args.head_dim + d;
    for (; position < group.all_see; ++position, v += args.head_dim) {
        prefetch_next_k<C>(args, d, position);
        __m512 value[C];
        TREADLE_UNROLL for (int c = 0; c < C; ++c) value[c] = load_value<kHalf>(v + 16 * c);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const __m512 p = _mm512_set1_ps(group.p[r][position]);
            TREADLE_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm512_fmadd_ps(p, value[c], acc[r][c]);
        }
    }
    add_edge<R, C, kHalf>(args, group, d, position, group.any_sees, acc);
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        float* to = args.acc + int64_t{group.row[r]} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < C; ++c) _mm512_mask_storeu_ps(to + 16 * c, lanes, acc[r][c]);
    }
}

template <int R>
void attend_group(const AttendArgs& args, Group& group) {
    score<R>(args, group);
    if (args.soft_cap.cap > 0.0f) cap_scores(args.soft_cap, group, R);
    raise_maxima(args, group, R);
    for (int r = 0; r < R; ++r) soften(args, group, r);
    constexpr int kWide = R <= 4 ? 4 : 2;
    int32_t d = 0;
    for (; d + 16 * kWide <= args.head_dim; d += 16 * kWide) add_values<R, kWide>(args, group, d);
    for (; d + 16 <= args.head_dim; d += 16) add_values<R, 1>(args, group, d);
    if (d < args.head_dim) add_values<R, 1, true>(args, group, d);
}

// The next rows of the call that see anything, up to a group.
inline int gather(const AttendArgs& args, int32_t& row, Group& group) {
    int size = 0;
    group.any_from = group.all_see = kKvBlockTokens;
    group.all_from = group.any_sees = 0;
    for (; row < args.num_rows && size < kGroupRows; ++row) {
        const int32_t first = args.first ? args.first[row] : 0, limit = args.limit[row];
        if (limit == 0) continue;
        group.q[size] = args.q + row / kQueryTile * kQueryTile * args.head_dim + row % kQueryTile;
        group.row[size++] = row;
        group.any_from = first < group.any_from ? first : group.any_from;
        group.all_from = first > group.all_from ? first : group.all_from;
        group.all_see = limit < group.all_see ? limit : group.all_see;
        group.any_sees = limit > group.any_sees ? limit : group.any_sees;
    }
    return size;
}

}  // namespace

void attend_block(const AttendArgs* args) {
    static constexpr void (*kAttendGroup[])(const AttendArgs&, Group&) = {
        attend_group<1>, attend_group<2>, attend_group<3>, attend_group<4>,
        attend_group<5>, attend_group<6>, attend_group<7>, attend_group<8>};
    Group group;
    int32_t row = 0;
    while (const int size = gather(*args, row, group)) kAttendGroup[size - 1](*args, group);
}

}  // namespace treadle::avx512_vnni
