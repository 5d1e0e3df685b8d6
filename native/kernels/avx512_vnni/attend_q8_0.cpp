// One q8_0 KV block as a step of the online softmax, for groups of up to eight query rows.
//
// Scores: a vector holds 16 positions with four dims each; four rows a pass, because integers of a group of 32 dims and
// running floats both want registers. Values: a vector holds 16 dims with two positions each, their weights are pairs
// of 16 bits. Integers are exact, so rows need no particular order; what lies behind a limit has weight 0.
#include "entries.h"
#include "vec.h"

namespace treadle::avx512_vnni {
namespace {

constexpr int kGroupRows = 8;
constexpr int kScoreRows = 4;

struct Group {
    int32_t row[kGroupRows];                          // row numbers of the call
    alignas(64) float e[kGroupRows][kKvBlockTokens];  // scores, then weights times kMaxWeight
    alignas(64) float block_max[16], old_factor[16], now_factor[16];
    alignas(64) int16_t units[kGroupRows][kKvBlockTokens];  // of one group of 32 dims
    bool all_see;                                           // every row sees the whole block
};

inline const uint8_t* scales_of(const uint8_t* half_block, int32_t head_dim, int32_t j) {
    return half_block + (int64_t{head_dim} + 2 * j) * kKvBlockTokens;
}

inline __m512 load_scales(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// Scores of rows first .. first + R - 1 of the group; requests V meanwhile, a line per four dims of K and one of K.
template <int R>
inline void score(const AttendQ8Args& args, Group& group, int first) {
    const int8_t* q[R];
    const float* scale[R];
    const int32_t* zero[R];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        const int32_t row = group.row[first + r];
        const ActTile& tile = args.q[row / kQueryTile];
        q[r] = tile.q + 4 * (row % kQueryTile);
        scale[r] = tile.scale + row % kQueryTile;
        zero[r] = tile.zero32 + row % kQueryTile;
    }
    __m512 total[R][2];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
    const uint8_t* k = args.k_block;
    for (int32_t j = 0; j < args.head_dim / 32; ++j) {
        __m512i s[R][2];
        TREADLE_UNROLL for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = repeat32(zero[r] + kQueryTile * j);
        TREADLE_UNROLL for (int g = 0; g < 8; ++g, k += 4 * kKvBlockTokens) {
            prefetch<128>(args.v_block + (k - args.k_block));
            const __m512i low = _mm512_loadu_si512(k), high = _mm512_loadu_si512(k + 64);
            TREADLE_UNROLL for (int r = 0; r < R; ++r) {
                const __m512i x = repeat32(q[r] + (8 * j + g) * 4 * kQueryTile);
                s[r][0] = _mm512_dpbusd_epi32(s[r][0], low, x);
                s[r][1] = _mm512_dpbusd_epi32(s[r][1], high, x);
            }
        }
        const uint8_t* scales = scales_of(args.k_block, args.head_dim, j);
        const __m512 low = load_scales(scales), high = load_scales(scales + 32);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const __m512 x = _mm512_set1_ps(scale[r][kQueryTile * j]);
            total[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(s[r][0]), low), x, total[r][0]);
            total[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(s[r][1]), high), x, total[r][1]);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        _mm512_store_ps(group.e[first + r], total[r][0]);
        _mm512_store_ps(group.e[first + r] + 16, total[r][1]);
    }
}

inline void cap_scores(SoftCap cap, Group& group, int num_rows) {
    for (int i = 0; i < num_rows; ++i) {
        for (float* e = group.e[i]; e < group.e[i] + kKvBlockTokens; e += 16) {
            _mm512_store_ps(e, soft_capped(_mm512_load_ps(e), cap));
        }
    }
}

// Maxima of the block and of each row so far, and the factors that bring their sums together; all rows in one vector.
inline void meet(const AttendQ8Args& args, Group& group, int num_rows) {
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    alignas(64) float before[16] = {}, after[16];
    for (int i = 0; i < num_rows; ++i) {
        const uint32_t seen = seen_by(args.first, args.limit, group.row[i]);
        const __m512 low = _mm512_mask_loadu_ps(none, static_cast<__mmask16>(seen), group.e[i]);
        const __m512 high = _mm512_mask_loadu_ps(none, static_cast<__mmask16>(seen >> 16), group.e[i] + 16);
        before[i] = args.max[group.row[i]];
        // Of two operands max returns the second if either is NaN, so NaN scores fall out.
        group.block_max[i] = _mm512_reduce_max_ps(_mm512_max_ps(high, _mm512_max_ps(low, none)));
    }
    const __mmask16 rows = static_cast<__mmask16>((1u << num_rows) - 1);
    const __m512 block = _mm512_maskz_loadu_ps(rows, group.block_max), old = _mm512_load_ps(before);
    const __m512 top = _mm512_max_ps(block, old);
    _mm512_store_ps(after, top);
    _mm512_store_ps(group.old_factor, exp_ps(_mm512_sub_ps(old, top)));
    _mm512_store_ps(group.now_factor, exp_ps(_mm512_sub_ps(block, top)));
    for (int i = 0; i < num_rows; ++i) args.max[group.row[i]] = after[i];
}

// Scores of row i of the group become weights relative to the block's maximum; the row's sum is updated.
inline void soften(const AttendQ8Args& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const uint32_t seen = seen_by(args.first, args.limit, row);
    const __m512 max = _mm512_set1_ps(group.block_max[i]), most = _mm512_set1_ps(kMaxWeight);
    const __m512 low =
        _mm512_maskz_mov_ps(static_cast<__mmask16>(seen), exp_ps(_mm512_sub_ps(_mm512_load_ps(group.e[i]), max)));
    const __m512 high = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> 16),
                                            exp_ps(_mm512_sub_ps(_mm512_load_ps(group.e[i] + 16), max)));
    _mm512_store_ps(group.e[i], _mm512_mul_ps(low, most));
    _mm512_store_ps(group.e[i] + 16, _mm512_mul_ps(high, most));
    args.sum[row] = args.sum[row] * group.old_factor[i] + sum_lanes(_mm512_add_ps(low, high)) * group.now_factor[i];
}

// V's scales of 32 dims relative to the largest one in sight.
struct Relative {
    __m512 low, high;
    float largest;
};

inline Relative relative_scales(const uint8_t* scales, uint32_t seen) {
    Relative out;
    out.low = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen), load_scales(scales));
    out.high = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> 16), load_scales(scales + 32));
    const uint32_t bits =
        _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_castps_si512(out.low), _mm512_castps_si512(out.high)));
    __builtin_memcpy(&out.largest, &bits, sizeof bits);
    const __m512 inverse = _mm512_set1_ps(out.largest > 0.0f ? 1.0f / out.largest : 0.0f);
    out.low = _mm512_mul_ps(out.low, inverse);
    out.high = _mm512_mul_ps(out.high, inverse);
    return out;
}

// 16 weights as 16-bit integers, NaN as 0.
inline __m256i units_of(const float* e, __m512 scale) {
    const __m512 exact = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(e), scale), _mm512_setzero_ps());
    return _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(exact));
}

// acc = acc * old + weights * V for the 32 dims of group j.
template <int R>
inline void add_values(const AttendQ8Args& args, Group& group, int32_t j) {
    const uint8_t* scales = scales_of(args.v_block, args.head_dim, j);
    float factor[R];
    Relative relative = relative_scales(scales, ~uint32_t{0});
    for (int r = 0; r < R; ++r) {
        if (!group.all_see) relative = relative_scales(scales, seen_by(args.first, args.limit, group.row[r]));
        factor[r] = (group.now_factor[r] * kUnitWeight) * relative.largest;
        _mm256_store_si256(reinterpret_cast<__m256i*>(group.units[r]), units_of(group.e[r], relative.low));
        _mm256_store_si256(reinterpret_cast<__m256i*>(group.units[r] + 16), units_of(group.e[r] + 16, relative.high));
    }
    __m512i s[R][2];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = _mm512_setzero_si512();
    const uint8_t* v = args.v_block + 64 * j;
    const uint8_t* next_k = (args.next_k_block ? args.next_k_block : args.k_block) + 32 * kKvBlockTokens * j;
    for (int pair = 0; pair < kKvBlockTokens / 2; ++pair, v += 2 * args.head_dim) {
        prefetch<64>(next_k + 64 * pair);
        const __m512i low = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v)));
        const __m512i high = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + 32)));
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const __m512i u = repeat32(group.units[r] + 2 * pair);
            s[r][0] = _mm512_dpwssd_epi32(s[r][0], low, u);
            s[r][1] = _mm512_dpwssd_epi32(s[r][1], high, u);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        float* acc = args.acc + int64_t{group.row[r]} * args.head_dim + 32 * j;
        const __m512 old = _mm512_set1_ps(group.old_factor[r]), now = _mm512_set1_ps(factor[r]);
        TREADLE_UNROLL for (int c = 0; c < 2; ++c) {
            const __m512 before = _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * c), old);
            _mm512_storeu_ps(acc + 16 * c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r][c]), now, before));
        }
    }
}

template <int R>
void attend_group(const AttendQ8Args& args, Group& group) {
    if constexpr (R <= kScoreRows) {
        score<R>(args, group, 0);
    } else {
        score<kScoreRows>(args, group, 0);
        score<R - kScoreRows>(args, group, kScoreRows);
    }
    if (args.soft_cap.cap > 0.0f) cap_scores(args.soft_cap, group, R);
    meet(args, group, R);
    for (int i = 0; i < R; ++i) soften(args, group, i);
    for (int32_t j = 0; j < args.head_dim / 32; ++j) add_values<R>(args, group, j);
}

// The next rows of the call that see anything, up to a group.
inline int gather(const AttendQ8Args& args, int32_t& row, Group& group) {
    int size = 0;
    group.all_see = true;
    for (; row < args.num_rows && size < kGroupRows; ++row) {
        if (args.limit[row] == 0) continue;
        group.row[size++] = row;
        if (args.limit[row] < kKvBlockTokens || (args.first && args.first[row] > 0)) group.all_see = false;
    }
    return size;
}

}  // namespace

void attend_block_q8_0(const AttendQ8Args* args) {
    static constexpr void (*kAttendGroup[])(const AttendQ8Args&, Group&) = {
        attend_group<1>, attend_group<2>, attend_group<3>, attend_group<4>,
        attend_group<5>, attend_group<6>, attend_group<7>, attend_group<8>};
    Group group;
    int32_t row = 0;
    while (const int size = gather(*args, row, group)) kAttendGroup[size - 1](*args, group);
}

}  // namespace treadle::avx512_vnni
