// How the products walk a panel. Sixteen registers hold the sums of both halves of its rows and four tokens, so a wider
// tile takes two passes over every eight sub-blocks. The first one keeps what it unpacked for the second one.
#pragma once

#include "unpack.h"

namespace treadle::avx2 {
namespace {

enum { kHalves = 2, kTurn = 8 };

// A sub-block unpacked: the weights of each group, and factors of rows that the formats with scales of scales have.
struct Unpacked {
    alignas(64) uint8_t q[8][64];
    float factors[4][kPanelRows];
};

// Whether a pass unpacks for itself, leaves what it unpacked to the next one, or finds it unpacked.
enum PassKind { kOnly, kFirst, kSecond };

// The weights of group g of half h. Those that a panel holds as they are need not be kept.
template <PassKind kKind, int g, class Source>
TREADLE_INLINE __m256i group(const Source& source, int h, Unpacked* unpacked) {
    uint8_t* kept = unpacked->q[g] + 32 * h;
    if constexpr (kKind == kSecond && !Source::kPlain) return load_bytes(kept);
    const __m256i weights = source.template weights<g>(h);
    if constexpr (kKind == kFirst && !Source::kPlain) _mm256_storeu_si256(reinterpret_cast<__m256i*>(kept), weights);
    return weights;
}

// The same for a factor of the rows of half h, which `compute` gives.
template <PassKind kKind, class Compute>
TREADLE_INLINE __m256 factor(const Compute& compute, int h, float* kept) {
    if constexpr (kKind == kSecond) return _mm256_loadu_ps(kept + kLanes * h);
    const __m256 value = compute();
    if constexpr (kKind == kFirst) _mm256_storeu_ps(kept + kLanes * h, value);
    return value;
}

template <PassKind kKind, int A, int B, class Source, class Sums>
TREADLE_INLINE void add_pair(const Source& source, Unpacked* unpacked, const int8_t* x, Sums& sums) {
    __m256i a[kHalves], b[kHalves];
    TREADLE_UNROLL for (int h = 0; h < kHalves; ++h) {
        a[h] = group<kKind, A>(source, h, unpacked);
        b[h] = group<kKind, B>(source, h, unpacked);
    }
    sums.template add<A, B>(a, b, x);
}

// The zero point of a format that sums leave to subtract: with eight bits it depends on them.
template <template <int, int, int> class Sums, class Format>
constexpr int left_zero_point = Format::kBits == 8 ? Sums<8, 1, 1>::kEightBitZeroPoint : Format::kZeroPoint;

// What the sums of 32 columns start with for a zero point, 0 or a power of two: a part of ActTile::zero32.
template <int kZeroPoint>
TREADLE_INLINE __m256i minus_zero_point(const int32_t* zero32) {
    if constexpr (kZeroPoint == 0)
        return _mm256_setzero_si256();
    else
        return _mm256_srai_epi32(repeat32(zero32), 7 - __builtin_ctz(kZeroPoint));
}

// The same for 16 columns and ActTile::zero16.
template <int kZeroPoint>
TREADLE_INLINE __m256i minus_zero_point_16(const int32_t* zero16) {
    if constexpr (kZeroPoint == 0)
        return _mm256_setzero_si256();
    else
        return _mm256_srai_epi32(repeat32(zero16), 5 - __builtin_ctz(kZeroPoint));
}

// Product::add<kKind, T, N>(panel, i, token, tile, unpacked, acc) adds sub-block i times N of T tokens from `token` on.
template <class Product>
struct Walk {
    template <PassKind kKind, int T, int N>
    static TREADLE_INLINE void pass(const char* panel, int64_t begin, int64_t end, int token, const ActTile* tile,
                                    Unpacked* unpacked, float (*acc)[kPanelRows]) {
        constexpr int kBytes = Product::kSubBlockBytes;
        for (int64_t i = begin; i < end; ++i) {
            if (kKind != kSecond) prefetch<kBytes>(panel + kPrefetchDistance + kBytes * i);
            Product::template add<kKind, T, N>(panel, i, token, tile, unpacked + (i - begin), acc);
        }
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const char* p = static_cast<const char*>(panel);
        alignas(32) float acc[T][kPanelRows] = {};
        Unpacked unpacked[kTurn];
        for (int64_t begin = 0; begin < num_columns / 32; begin += kTurn) {
            const int64_t end = begin + kTurn < num_columns / 32 ? begin + kTurn : num_columns / 32;
            if constexpr (T <= 4) {
                pass<kOnly, T, T>(p, begin, end, 0, tile, unpacked, acc);
            } else {
                constexpr int kMany = (T + 1) / 2;
                pass<kFirst, T, kMany>(p, begin, end, 0, tile, unpacked, acc);
                pass<kSecond, T, T - kMany>(p, begin, end, kMany, tile, unpacked, acc);
            }
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            TREADLE_UNROLL for (int r = 0; r < kPanelRows; r += kLanes)
                _mm256_storeu_ps(out + kPanelRows * t + r, _mm256_load_ps(acc[t] + r));
        }
    }
};

}  // namespace
}  // namespace treadle::avx2
