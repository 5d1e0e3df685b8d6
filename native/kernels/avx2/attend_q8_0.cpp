// Attention of query rows over one q8_0 KV block of 32 positions, up to four rows at a time.
//
// Scores: a vector holds eight positions with four dims each; vpmaddubsw takes |k| and q with k's sign, which cannot
// saturate (2 * 128 * 127). Values: a vector holds eight dims with two positions each, as 16-bit numbers for vpmaddwd.
// Integers are exact, so rows need no particular order; what lies behind a limit has weight 0.
#include "entries.h"
#include "vec.h"

namespace treadle::avx2 {
namespace {

constexpr int kGroupRows = 4;
constexpr int kVectors = kKvBlockTokens / kLanes;

struct Group {
    int32_t row[kGroupRows];                          // row numbers of the call
    alignas(32) float e[kGroupRows][kKvBlockTokens];  // scores, then weights times kMaxWeight
    float old_factor[kGroupRows], now_factor[kGroupRows];
    alignas(32) int16_t units[kGroupRows][kKvBlockTokens];  // of one group of 32 dims
};

inline const uint16_t* scales_of(const uint8_t* half_block, int32_t head_dim, int32_t j) {
    return reinterpret_cast<const uint16_t*>(half_block + (int64_t{head_dim} + 2 * j) * kKvBlockTokens);
}

// Scores of positions 8 * first .. 8 * first + 15.
template <int R>
inline void score_half(const AttendQ8Args& args, int first, Group& group) {
    const __m256i sign_bits = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    const uint8_t* k = args.k_block + 32 * first;
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        _mm256_store_ps(group.e[r] + kLanes * first, _mm256_setzero_ps());
        _mm256_store_ps(group.e[r] + kLanes * (first + 1), _mm256_setzero_ps());
    }
    for (int32_t j = 0; j < args.head_dim / 32; ++j) {
        __m256i s[R][2];
        TREADLE_UNROLL for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = _mm256_setzero_si256();
        for (int32_t g = 8 * j; g < 8 * j + 8; ++g, k += 4 * kKvBlockTokens) {
            prefetch<64>(args.v_block + (k - args.k_block));
            __m256i key[2], size[2];
            TREADLE_UNROLL for (int n = 0; n < 2; ++n) {
                key[n] = _mm256_xor_si256(load_bytes(k + 32 * n), sign_bits);
                size[n] = _mm256_abs_epi8(key[n]);
            }
            TREADLE_UNROLL for (int r = 0; r < R; ++r) {
                const int32_t row = group.row[r];
                const int8_t* q = args.q[row / kQueryTile].q + 4 * (row % kQueryTile);
                const __m256i x = repeat32(q + g * 4 * kQueryTile);
                TREADLE_UNROLL for (int n = 0; n < 2; ++n) {
                    const __m256i pairs = _mm256_maddubs_epi16(size[n], _mm256_sign_epi8(x, key[n]));
                    s[r][n] = _mm256_add_epi32(s[r][n], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        const uint16_t* scales = scales_of(args.k_block, args.head_dim, j);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t row = group.row[r];
            const __m256 x = _mm256_set1_ps(args.q[row / kQueryTile].scale[kQueryTile * j + row % kQueryTile]);
            TREADLE_UNROLL for (int n = 0; n < 2; ++n) {
                float* e = group.e[r] + kLanes * (first + n);
                const __m256 scaled =
                    _mm256_mul_ps(_mm256_cvtepi32_ps(s[r][n]), load_f16(scales + kLanes * (first + n)));
                _mm256_store_ps(e, _mm256_fmadd_ps(scaled, x, _mm256_load_ps(e)));
            }
        }
    }
}

inline float largest_lane(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

inline float exp_one(float x) { return _mm256_cvtss_f32(exp_ps(_mm256_set1_ps(x))); }

inline __m256 seen_of(const AttendQ8Args& args, int32_t row, int n) {
    return seen_of(args.first ? args.first[row] : 0, args.limit[row], n);
}

// Scores of row i of the group to weights relative to the block's maximum; updates max and sum.
inline void soften(const AttendQ8Args& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const __m256 none = _mm256_set1_ps(-__builtin_inff());
    __m256 p[kVectors], seen[kVectors];
    __m256 top_lanes = none;
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        seen[n] = seen_of(args, row, n);
        p[n] = _mm256_load_ps(group.e[i] + kLanes * n);
        if (args.soft_cap.cap > 0.0f) p[n] = soft_capped(p[n], args.soft_cap);
        // Of two operands max returns the second if either is NaN, so NaN scores fall out.
        top_lanes = _mm256_max_ps(_mm256_blendv_ps(none, p[n], seen[n]), top_lanes);
    }
    const float block_max = largest_lane(top_lanes), before = args.max[row];
    const float top = block_max > before ? block_max : before;
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        p[n] = _mm256_and_ps(seen[n], exp_ps(_mm256_sub_ps(p[n], _mm256_set1_ps(block_max))));
        _mm256_store_ps(group.e[i] + kLanes * n, _mm256_mul_ps(p[n], _mm256_set1_ps(kMaxWeight)));
    }
    const __m256 sums = _mm256_add_ps(_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3]));
    group.old_factor[i] = exp_one(before - top);
    group.now_factor[i] = exp_one(block_max - top);
    args.max[row] = top;
    args.sum[row] = args.sum[row] * group.old_factor[i] + sum_lanes(sums) * group.now_factor[i];
}

// V's scales of 32 dims relative to the largest one in the row's sight, which is returned.
inline float relative_scales(const AttendQ8Args& args, int32_t row, const uint16_t* scales, __m256* out) {
    __m256i top = _mm256_setzero_si256();
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        out[n] = _mm256_and_ps(seen_of(args, row, n), load_f16(scales + kLanes * n));
        top = _mm256_max_epu32(top, _mm256_castps_si256(out[n]));
    }
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(m));
    const __m256 inverse = _mm256_set1_ps(largest > 0.0f ? 1.0f / largest : 0.0f);
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) out[n] = _mm256_mul_ps(out[n], inverse);
    return largest;
}

// Eight weights as integers, NaN as 0.
inline __m256i units_of(const float* e, __m256 scale) {
    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_mul_ps(_mm256_load_ps(e), scale), _mm256_setzero_ps()));
}

inline void round_weights(Group& group, int i, const __m256* scale) {
    TREADLE_UNROLL for (int n = 0; n < kVectors; n += 2) {
        const float* e = group.e[i] + kLanes * n;
        const __m256i mixed = _mm256_packs_epi32(units_of(e, scale[n]), units_of(e + kLanes, scale[n + 1]));
        _mm256_store_si256(reinterpret_cast<__m256i*>(group.units[i] + kLanes * n),
                           _mm256_permute4x64_epi64(mixed, 0xD8));
    }
}

// acc = acc * old + weights * V for 16 dims from d on.
template <int R>
inline void add_values(const AttendQ8Args& args, const Group& group, const float* factor, int32_t d) {
    __m256i s[R][2];
    TREADLE_UNROLL for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = _mm256_setzero_si256();
    const uint8_t* v = args.v_block + 2 * d;
    const uint8_t* next_k = (args.next_k_block ? args.next_k_block : args.k_block) + int64_t{kKvBlockTokens} * d;
    for (int pair = 0; pair < kKvBlockTokens / 2; ++pair, v += 2 * args.head_dim) {
        if (pair % 2 == 0) prefetch<64>(next_k + 32 * pair);
        __m256i value[2];
        TREADLE_UNROLL for (int c = 0; c < 2; ++c) value[c] =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 16 * c)));
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const __m256i u = repeat32(group.units[r] + 2 * pair);
            TREADLE_UNROLL for (int c = 0; c < 2; ++c) s[r][c] =
                _mm256_add_epi32(s[r][c], _mm256_madd_epi16(value[c], u));
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        float* acc = args.acc + int64_t{group.row[r]} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < 2; ++c) {
            const __m256 before = _mm256_mul_ps(_mm256_loadu_ps(acc + kLanes * c), _mm256_set1_ps(group.old_factor[r]));
            _mm256_storeu_ps(acc + kLanes * c,
                             _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[r][c]), _mm256_set1_ps(factor[r]), before));
        }
    }
}

template <int R>
void attend_group(const AttendQ8Args& args, Group& group) {
    score_half<R>(args, 0, group);
    score_half<R>(args, kVectors / 2, group);
    for (int i = 0; i < R; ++i) soften(args, group, i);
    for (int32_t j = 0; j < args.head_dim / 32; ++j) {
        float factor[R];
        for (int i = 0; i < R; ++i) {
            __m256 scale[kVectors];
            const uint16_t* scales = scales_of(args.v_block, args.head_dim, j);
            const float largest = relative_scales(args, group.row[i], scales, scale);
            factor[i] = (group.now_factor[i] * kUnitWeight) * largest;
            round_weights(group, i, scale);
        }
        add_values<R>(args, group, factor, 32 * j);
        add_values<R>(args, group, factor, 32 * j + 16);
    }
}

}  // namespace

void attend_block_q8_0(const AttendQ8Args* args) {
    static constexpr void (*kAttendGroup[])(const AttendQ8Args&, Group&) = {attend_group<1>, attend_group<2>,
                                                                            attend_group<3>, attend_group<4>};
    Group group;
    int32_t row = 0;
    while (row < args->num_rows) {
        int size = 0;
        for (; row < args->num_rows && size < kGroupRows; ++row) {
            if (args->limit[row] > 0) group.row[size++] = row;
        }
        if (size > 0) kAttendGroup[size - 1](*args, group);
    }
}

}  // namespace treadle::avx2
