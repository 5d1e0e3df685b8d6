// Attention of query rows over one q8_0 KV block of 32 positions, up to four rows at a time.
//
// Scores: a vector holds four positions with four dims each. Values: a vector holds four dims with two positions each,
// as 16-bit numbers; products of even and odd lanes meet at the end. Integers are exact, so rows need no particular
// order; what lies behind a limit has weight 0.
#include "entries.h"
#include "vec.h"

namespace treadle::neon_dotprod {
namespace {

constexpr int kGroupRows = 4;
constexpr int kVectors = kKvBlockTokens / kLanes;
constexpr int kHalf = kVectors / 2;

struct Group {
    int32_t row[kGroupRows];              // row numbers of the call
    float e[kGroupRows][kKvBlockTokens];  // scores, then weights times kMaxWeight
    float old_factor[kGroupRows], now_factor[kGroupRows];
    int16_t units[kGroupRows][kKvBlockTokens];  // of one group of 32 dims
};

inline const uint16_t* scales_of(const uint8_t* half_block, int32_t head_dim, int32_t j) {
    return reinterpret_cast<const uint16_t*>(half_block + (int64_t{head_dim} + 2 * j) * kKvBlockTokens);
}

inline int32_t load32(const void* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// Scores of positions 4 * first .. 4 * first + 15.
template <int R>
inline void score_half(const AttendQ8Args& args, int first, Group& group) {
    const uint8x16_t sign_bits = vdupq_n_u8(128);
    const uint8_t* k = args.k_block + 16 * first;
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < kHalf; ++n) vst1q_f32(group.e[r] + kLanes * (first + n), vdupq_n_f32(0.0f));
    }
    for (int32_t j = 0; j < args.head_dim / 32; ++j) {
        int32x4_t s[R][kHalf] = {};
        for (int32_t g = 8 * j; g < 8 * j + 8; ++g, k += 4 * kKvBlockTokens) {
            prefetch<64>(args.v_block + (k - args.k_block));
            int8x16_t key[kHalf];
            TREADLE_UNROLL for (int n = 0; n < kHalf; ++n) key[n] =
                vreinterpretq_s8_u8(veorq_u8(vld1q_u8(k + 16 * n), sign_bits));
            TREADLE_UNROLL for (int r = 0; r < R; ++r) {
                const int32_t row = group.row[r];
                const int8_t* q = args.q[row / kQueryTile].q + 4 * (row % kQueryTile) + g * 4 * kQueryTile;
                const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(load32(q)));
                TREADLE_UNROLL for (int n = 0; n < kHalf; ++n) s[r][n] = vdotq_s32(s[r][n], key[n], x);
            }
        }
        const uint16_t* scales = scales_of(args.k_block, args.head_dim, j) + kLanes * first;
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t row = group.row[r];
            const float32x4_t x = vdupq_n_f32(args.q[row / kQueryTile].scale[kQueryTile * j + row % kQueryTile]);
            TREADLE_UNROLL for (int n = 0; n < kHalf; ++n) {
                float* e = group.e[r] + kLanes * (first + n);
                const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(s[r][n]), load_f16(scales + kLanes * n));
                vst1q_f32(e, vfmaq_f32(vld1q_f32(e), scaled, x));
            }
        }
    }
}

inline float exp_one(float x) { return vgetq_lane_f32(exp_ps(vdupq_n_f32(x)), 0); }

inline uint32x4_t seen_of(const AttendQ8Args& args, int32_t row, int n) {
    return seen_of(args.first ? args.first[row] : 0, args.limit[row], n);
}

inline float32x4_t masked(uint32x4_t seen, float32x4_t x) {
    return vreinterpretq_f32_u32(vandq_u32(seen, vreinterpretq_u32_f32(x)));
}

// Scores of row i of the group to weights relative to the block's maximum; updates max and sum.
inline void soften(const AttendQ8Args& args, Group& group, int i) {
    const int32_t row = group.row[i];
    const float32x4_t none = vdupq_n_f32(-__builtin_inff());
    float32x4_t p[kVectors];
    uint32x4_t seen[kVectors];
    float32x4_t top_lanes = none;
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        seen[n] = seen_of(args, row, n);
        p[n] = vld1q_f32(group.e[i] + kLanes * n);
        if (args.soft_cap.cap > 0.0f) p[n] = soft_capped(p[n], args.soft_cap);
        // Of a number and a NaN this maximum is the number.
        top_lanes = vmaxnmq_f32(top_lanes, vbslq_f32(seen[n], p[n], none));
    }
    const float block_max = vmaxnmvq_f32(top_lanes), before = args.max[row];
    const float top = block_max > before ? block_max : before;
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        p[n] = masked(seen[n], exp_ps(vsubq_f32(p[n], vdupq_n_f32(block_max))));
        vst1q_f32(group.e[i] + kLanes * n, vmulq_f32(p[n], vdupq_n_f32(kMaxWeight)));
    }
    for (int width = kVectors / 2; width >= 1; width /= 2) {
        for (int n = 0; n < width; ++n) p[n] = vaddq_f32(p[n], p[n + width]);
    }
    group.old_factor[i] = exp_one(before - top);
    group.now_factor[i] = exp_one(block_max - top);
    args.max[row] = top;
    args.sum[row] = args.sum[row] * group.old_factor[i] + sum_lanes(p[0]) * group.now_factor[i];
}

// Weights of row i as 16-bit integers for 32 dims whose V has these scales; returns the largest scale in sight.
inline float round_weights(const AttendQ8Args& args, Group& group, int i, const uint16_t* scales) {
    float32x4_t scale[kVectors];
    uint32x4_t top = vdupq_n_u32(0);
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        scale[n] = masked(seen_of(args, group.row[i], n), load_f16(scales + kLanes * n));
        top = vmaxq_u32(top, vreinterpretq_u32_f32(scale[n]));
    }
    const uint32_t bits = vmaxvq_u32(top);
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof largest);
    const float inverse = largest > 0.0f ? 1.0f / largest : 0.0f;
    TREADLE_UNROLL for (int n = 0; n < kVectors; ++n) {
        const float32x4_t exact = vmulq_f32(vld1q_f32(group.e[i] + kLanes * n), vmulq_n_f32(scale[n], inverse));
        // A NaN is converted to 0.
        vst1_s16(group.units[i] + kLanes * n, vmovn_s32(vcvtnq_s32_f32(exact)));
    }
    return largest;
}

// acc = acc * old + weights * V for 8 dims from d on.
template <int R>
inline void add_values(const AttendQ8Args& args, const Group& group, const float* factor, int32_t d) {
    int32x4_t s[R][4] = {};
    const auto* v = reinterpret_cast<const int8_t*>(args.v_block) + 2 * d;
    for (int pair = 0; pair < kKvBlockTokens / 2; ++pair, v += 2 * args.head_dim) {
        const int8x16_t bytes = vld1q_s8(v);
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
        TREADLE_UNROLL for (int r = 0; r < R; ++r) {
            const int16x8_t u = vreinterpretq_s16_s32(vdupq_n_s32(load32(group.units[r] + 2 * pair)));
            s[r][0] = vmlal_s16(s[r][0], vget_low_s16(low), vget_low_s16(u));
            s[r][1] = vmlal_high_s16(s[r][1], low, u);
            s[r][2] = vmlal_s16(s[r][2], vget_low_s16(high), vget_low_s16(u));
            s[r][3] = vmlal_high_s16(s[r][3], high, u);
        }
    }
    TREADLE_UNROLL for (int r = 0; r < R; ++r) {
        float* acc = args.acc + int64_t{group.row[r]} * args.head_dim + d;
        TREADLE_UNROLL for (int c = 0; c < 2; ++c) {
            const float32x4_t sum = vcvtq_f32_s32(vpaddq_s32(s[r][2 * c], s[r][2 * c + 1]));
            const float32x4_t before = vmulq_n_f32(vld1q_f32(acc + kLanes * c), group.old_factor[r]);
            vst1q_f32(acc + kLanes * c, vfmaq_n_f32(before, sum, factor[r]));
        }
    }
}

template <int R>
void attend_group(const AttendQ8Args& args, Group& group) {
    score_half<R>(args, 0, group);
    score_half<R>(args, kHalf, group);
    for (int i = 0; i < R; ++i) soften(args, group, i);
    for (int32_t j = 0; j < args.head_dim / 32; ++j) {
        const uint16_t* scales = scales_of(args.v_block, args.head_dim, j);
        float factor[R];
        for (int i = 0; i < R; ++i) {
            const float largest = round_weights(args, group, i, scales);
            factor[i] = (group.now_factor[i] * kUnitWeight) * largest;
        }
        for (int32_t d = 32 * j; d < 32 * j + 32; d += 8) add_values<R>(args, group, factor, d);
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

}  // namespace treadle::neon_dotprod
