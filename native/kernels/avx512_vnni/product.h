// Products of quantised panels, for any source of weights.
//
// Source(panel, i) is sub-block i of a panel, 32 columns: weights<g>() are the unsigned weights of group g, and
// factor<n>() what a row's sums are multiplied with:
//   one scale a sub-block   factor 0, then the minimum if there is one
//   one scale a half        factors 0 and 1, then the two minimums
// Sources without minimums have a zero point, a power of two; those that are kPlain only load their weights,
// and those that are not kInMemory were written a moment ago and are in the cache.
#pragma once

#include "unpack.h"

namespace treadle::avx512_vnni {
namespace {

inline __m512 repeat_float(const float* p) { return _mm512_set1_ps(*p); }

// low[t] += groups 0..3 of the weights times x [8][T][4], high[t] += groups 4..7; both may be the same.
template <int T, int g = 0, class Source>
inline void dot_groups(const Source& source, const int8_t* x, __m512i* low, __m512i* high) {
    if constexpr (g < 4) {
        dot4<T>(source.template weights<g>(), x + 4 * T * g, low);
        dot4<T>(source.template weights<g + 4>(), x + 4 * T * (g + 4), high);
        dot_groups<T, g + 1>(source, x, low, high);
    }
}

// s[t] = sub-block i times the tokens, zero point taken off. A product takes four cycles and two begin in each, so that
// one sum for each of eight tokens leaves no room for anything else: plain weights, which need few registers, have two.
template <int T, class Source>
inline void dot_whole(const Source& source, int64_t i, const ActTile* tile, __m512i* s) {
    const int8_t* x = tile->q + 32 * T * i;
    TREADLE_UNROLL for (int t = 0; t < T; ++t) {
        if constexpr (Source::kHasMinimum)
            s[t] = _mm512_setzero_si512();
        else
            s[t] = _mm512_srai_epi32(repeat32(tile->zero32 + T * i + t), 7 - __builtin_ctz(Source::kZeroPoint));
    }
    if constexpr (Source::kPlain) {
        __m512i high[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) high[t] = _mm512_setzero_si512();
        dot_groups<T>(source, x, s, high);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm512_add_epi32(s[t], high[t]);
    } else {
        dot_groups<T>(source, x, s, s);
    }
}

// The formats with blocks of 32 columns: the scale of the weights meets that of the activations first.
struct Blocks32 {
    static constexpr int kScales = 1, kUnpackedZeroPoint = 128;

    template <int T, class Source>
    static void add(const Source& source, int64_t i, const ActTile* tile, __m512* acc) {
        __m512i s[T];
        dot_whole<T>(source, i, tile, s);
        const __m512 d = source.template factor<0>();
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            const __m512 scale = _mm512_mul_ps(d, repeat_float(tile->scale + T * i + t));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), scale, acc[t]);
        }
        if constexpr (Source::kHasMinimum) {
            const __m512 m = source.template factor<1>();
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
                _mm512_fmadd_ps(m, repeat_float(tile->scaled_sum + T * i + t), acc[t]);
        }
    }
};

// Sub-blocks that have one scale.
struct WholeSubBlocks {
    static constexpr int kScales = 1, kUnpackedZeroPoint = 128;

    template <int T, class Source>
    static void add(const Source& source, int64_t i, const ActTile* tile, __m512* acc) {
        __m512i s[T];
        dot_whole<T>(source, i, tile, s);
        const __m512 scale = source.template factor<0>();
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), scale);
            acc[t] = _mm512_fmadd_ps(scaled, repeat_float(tile->scale + T * i + t), acc[t]);
        }
        if constexpr (Source::kHasMinimum) {
            const __m512 min = source.template factor<1>();
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
                _mm512_fnmadd_ps(min, repeat_float(tile->scaled_sum + T * i + t), acc[t]);
        }
    }
};

// Sub-blocks whose halves have a scale each, and a minimum each if the format has them.
struct HalvedSubBlocks {
    static constexpr int kScales = 2, kUnpackedZeroPoint = 32;

    template <int T, int g, int kEnd, class Source>
    static void dot_half_groups(const Source& source, const int8_t* x, __m512i* s) {
        if constexpr (g < kEnd) {
            dot4<T>(source.template weights<g>(), x + 4 * T * g, s);
            dot_half_groups<T, g + 1, kEnd>(source, x, s);
        }
    }

    // s[t] = 16 columns times x, zero point taken off.
    template <int T, int kHalf, class Source>
    static void dot_half(const Source& source, int64_t i, const ActTile* tile, __m512i* s) {
        const int32_t* zero = tile->zero16 + T * (2 * i + kHalf);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            if constexpr (Source::kHasMinimum)
                s[t] = _mm512_setzero_si512();
            else
                s[t] = _mm512_srai_epi32(repeat32(zero + t), 5 - __builtin_ctz(Source::kZeroPoint));
        }
        dot_half_groups<T, 4 * kHalf, 4 * kHalf + 4>(source, tile->q + 32 * T * i, s);
    }

    template <int T, class Source>
    static void add(const Source& source, int64_t i, const ActTile* tile, __m512* acc) {
        const __m512 scale0 = source.template factor<0>(), scale1 = source.template factor<1>();
        __m512i s[T];
        __m512 g[T];
        dot_half<T, 0>(source, i, tile, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) g[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), scale0);
        dot_half<T, 1>(source, i, tile, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), scale1, g[t]);
        if constexpr (Source::kHasMinimum) {
            const __m512 min0 = source.template factor<2>(), min1 = source.template factor<3>();
            const int32_t* zero = tile->zero16 + 2 * T * i;
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(repeat32(zero + t)), min0, g[t]);
                g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(repeat32(zero + T + t)), min1, g[t]);
            }
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
            _mm512_fmadd_ps(g[t], repeat_float(tile->scale + T * i + t), acc[t]);
    }
};

// All sub-blocks of a panel. Kind::add<T>(source, i, tile, acc) adds sub-block i to the sums of T tokens.
template <class Kind, class Source>
struct Product {
    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        __m512 acc[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
        const char* ahead = static_cast<const char*>(panel) + kPrefetchDistance;
        for (int64_t i = 0; i < num_columns / 32; ++i) {
            if constexpr (Source::kInMemory) prefetch<Source::kBytes>(ahead + Source::kBytes * i);
            Kind::template add<T>(Source(panel, i), i, tile, acc);
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + kPanelRows * t, acc[t]);
    }
};

// A sub-block that is unpacked once for many tiles: all formats of a kind look alike then.
template <class Kind, bool kMinimum>
struct Unpacked {
    static constexpr int kFactors = Kind::kScales * (kMinimum ? 2 : 1), kBytes = 64 * (8 + kFactors);
    static constexpr int kZeroPoint = kMinimum ? 0 : Kind::kUnpackedZeroPoint;
    static constexpr bool kHasMinimum = kMinimum, kPlain = true, kInMemory = false;
    const char* block;

    Unpacked(const void* panel, int64_t i) : block(static_cast<const char*>(panel) + kBytes * i) {}

    template <int g>
    __m512i weights() const {
        return _mm512_loadu_si512(block + 64 * g);
    }
    template <int n>
    __m512 factor() const {
        return _mm512_loadu_ps(block + 64 * (8 + n));
    }
};

// Fills lines of an unpacked sub-block: first the weights, then the factors.
template <int kZeroPointShift, int kLines, int line = 0, class Source>
inline void unpack_lines(const Source& source, char* out) {
    if constexpr (line < 8)
        _mm512_storeu_si512(out + 64 * line, _mm512_add_epi8(source.template weights<line>(),
                                                             _mm512_set1_epi8(static_cast<char>(kZeroPointShift))));
    else
        _mm512_storeu_ps(out + 64 * line, source.template factor<line - 8>());
    if constexpr (line + 1 < kLines) unpack_lines<kZeroPointShift, kLines, line + 1>(source, out);
}

template <class Kind, class Source>
inline void unpack(const void* panel, int64_t num_columns, void* out) {
    using Result = Unpacked<Kind, Source::kHasMinimum>;
    for (int64_t i = 0; i < num_columns / 32; ++i) {
        unpack_lines<Result::kZeroPoint - Source::kZeroPoint, Result::kBytes / 64>(
            Source(panel, i), static_cast<char*>(out) + Result::kBytes * i);
    }
}

}  // namespace
}  // namespace treadle::avx512_vnni
