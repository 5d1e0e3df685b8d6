// Products of the formats with blocks of 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
#include "entries.h"
#include "unpack.h"

namespace treadle::avx512_vnni {
namespace {

// What differs between the formats: the unpacking, and the zero point (a power of two) or the minimum.
struct Q4_0 {
    using Panel = PanelQ4_0;
    static constexpr int kZeroPoint = 8;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_four_bit<T>(block.q, x, s);
    }
};

struct Q4_1 {
    using Panel = PanelQ4_1;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_four_bit<T>(block.q, x, s);
    }
};

struct Q5_0 {
    using Panel = PanelQ5_0;
    static constexpr int kZeroPoint = 16;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_five_bit<T>(block.q, block.h, x, s);
    }
};

struct Q5_1 {
    using Panel = PanelQ5_1;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_five_bit<T>(block.q, block.h, x, s);
    }
};

struct Q8_0 {
    using Panel = PanelQ8_0;
    static constexpr int kZeroPoint = 128;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_eight_bit<T>(block.q, x, s);
    }
};

struct IQ4_NL {
    using Panel = PanelIQ4_NL;
    static constexpr int kZeroPoint = kIq4ZeroPoint;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_coded<T, kIq4ZeroPoint>(block.q, kIq4Values, x, s);
    }
};

struct MXFP4 {
    using Panel = PanelMXFP4;
    static constexpr int kZeroPoint = kMxfp4ZeroPoint;
    template <int T>
    static void dot(const Panel& block, const int8_t* x, __m512i* s) {
        dot_coded<T, kMxfp4ZeroPoint>(block.q, kMxfp4Values, x, s);
    }
};

template <class Panel>
inline __m512 factors(const Panel& block) {
    return load_f16(block.d);
}
inline __m512 factors(const PanelMXFP4& block) { return load_half_e8m0(block.e); }

template <class Format>
struct Product {
    using Panel = typename Format::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.m; };

    // acc[t] += one block; `first` is the index of token 0 in the tile's per-block arrays.
    template <int T>
    static void add_block(const Panel& block, const int8_t* x, const ActTile* tile, int64_t first, __m512* acc) {
        __m512i s[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm512_setzero_si512();
        Format::template dot<T>(block, x, s);
        const __m512 d = factors(block);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            if constexpr (!kHasMinimum)
                s[t] = _mm512_sub_epi32(
                    s[t], _mm512_slli_epi32(repeat32(tile->sum + first + t), __builtin_ctz(Format::kZeroPoint)));
            const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(tile->scale[first + t]));
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), scale, acc[t]);
        }
        if constexpr (kHasMinimum) {
            const __m512 m = load_f16(block.m);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
                _mm512_fmadd_ps(m, _mm512_set1_ps(tile->scaled_sum[first + t]), acc[t]);
        }
    }

    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const Panel* block = static_cast<const Panel*>(panel);
        __m512 acc[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
        for (int64_t b = 0; b < num_columns / 32; ++b) {
            prefetch<sizeof(Panel)>(block + b + kPrefetchDistance / sizeof(Panel));
            add_block<T>(block[b], tile->q + 32 * T * b, tile, T * b, acc);
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + kPanelRows * t, acc[t]);
    }
};

}  // namespace

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q4_0>>(panel, num_columns, tile, out);
}

void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q4_1>>(panel, num_columns, tile, out);
}

void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q5_0>>(panel, num_columns, tile, out);
}

void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q5_1>>(panel, num_columns, tile, out);
}

void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Q8_0>>(panel, num_columns, tile, out);
}

void matmul_iq4_nl(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<IQ4_NL>>(panel, num_columns, tile, out);
}

void matmul_mxfp4(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<MXFP4>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx512_vnni
