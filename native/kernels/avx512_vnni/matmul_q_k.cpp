// Products of the formats with blocks of 256 columns: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ2_0.
#include "entries.h"
#include "unpack.h"

namespace treadle::avx512_vnni {
namespace {

template <int T>
inline void clear(__m512i* s) {
    TREADLE_UNROLL for (int t = 0; t < T; ++t) s[t] = _mm512_setzero_si512();
}

// 16 bytes, one per row, as 32-bit lanes.
inline __m512i load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Walks the sub-blocks of a panel; Block::add<T> adds sub-block j of a block, the i-th of the row, to acc.
template <class Block>
struct Product {
    template <int T>
    static void run(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
        const auto* block = static_cast<const typename Block::Panel*>(panel);
        constexpr int kSubBlockBytes = sizeof(*block) / 8;
        __m512 acc[T];
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
        for (int64_t b = 0; b < num_columns / 256; ++b) {
            for (int j = 0; j < 8; ++j) {
                prefetch<kSubBlockBytes>(reinterpret_cast<const char*>(block + b) + kPrefetchDistance +
                                         kSubBlockBytes * j);
                Block::template add<T>(block[b], j, 8 * b + j, tile, acc);
            }
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) _mm512_storeu_ps(out + kPanelRows * t, acc[t]);
    }
};

// Sub-blocks that have one scale: Format::dot<T> sums up their products, Format::scale gives the factors of the rows,
// Format::min what a format with minimums takes off.
template <class Format>
struct Whole {
    using Panel = typename Format::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.dmin; };

    template <int T>
    static void add(const Panel& block, int j, int64_t i, const ActTile* tile, __m512* acc) {
        __m512i s[T];
        clear<T>(s);
        Format::template dot<T>(block, j, tile->q + 32 * T * i, s);
        const __m512 scale = Format::scale(block, j);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            if constexpr (!kHasMinimum)
                s[t] = _mm512_sub_epi32(
                    s[t], _mm512_slli_epi32(repeat32(tile->sum + T * i + t), __builtin_ctz(Format::kZeroPoint)));
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), scale);
            acc[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(tile->scale[T * i + t]), acc[t]);
        }
        if constexpr (kHasMinimum) {
            const __m512 min = Format::min(block, j);
            TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
                _mm512_fnmadd_ps(min, _mm512_set1_ps(tile->scaled_sum[T * i + t]), acc[t]);
        }
    }
};

template <class PanelType>
struct Q45K {
    using Panel = PanelType;

    template <int T>
    static void dot(const Panel& block, int j, const int8_t* x, __m512i* s) {
        if constexpr (requires { block.h; })
            dot_five_bit<T>(block.q[j], block.h[j], x, s);
        else
            dot_four_bit<T>(block.q[j], x, s);
    }

    static __m512 scale(const Panel& block, int j) {
        const __m512i bits = _mm512_and_si512(load_bytes(block.s[j]), _mm512_set1_epi32(63));
        return _mm512_mul_ps(load_f16(block.d), _mm512_cvtepi32_ps(bits));
    }

    static __m512 min(const Panel& block, int j) {
        const __m512i low =
            _mm512_and_si512(_mm512_srli_epi32(load_bytes(block.m[j / 2]), 4 * (j % 2)), _mm512_set1_epi32(15));
        const __m512i high = _mm512_srli_epi32(load_bytes(block.s[j]), 6);
        const __m512i bits = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
        return _mm512_mul_ps(load_f16(block.dmin), _mm512_cvtepi32_ps(bits));
    }
};

struct IQ4_XS {
    using Panel = PanelIQ4_XS;
    static constexpr int kZeroPoint = kIq4ZeroPoint;

    template <int T>
    static void dot(const Panel& block, int j, const int8_t* x, __m512i* s) {
        dot_coded<T, kIq4ZeroPoint>(block.q[j], kIq4Values, x, s);
    }

    static __m512 scale(const Panel& block, int j) {
        const __m512i s = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.s[j])));
        return _mm512_mul_ps(load_f16(block.d), _mm512_cvtepi32_ps(s));
    }
};

struct TQ2_0 {
    using Panel = PanelTQ2_0;
    static constexpr int kZeroPoint = 1;

    template <int T, int g = 0>
    static void dot(const Panel& block, int j, const int8_t* x, __m512i* s) {
        if constexpr (g < 8) {
            dot4<T>(two_bit_group<g>(block.q[j]), x + 4 * T * g, s);
            dot<T, g + 1>(block, j, x, s);
        }
    }

    static __m512 scale(const Panel& block, int) { return load_f16(block.d); }
};

// Sub-blocks whose halves have a scale each, and a minimum each if the format has them: Format::weights<g> are the
// unsigned weights of group g.
template <class Format>
struct Halves {
    using Panel = typename Format::Panel;
    static constexpr bool kHasMinimum = requires(Panel p) { p.dmin; };

    template <int T, int g, int kEnd>
    static void dot_groups(const Panel& block, int j, const int8_t* x, __m512i* s) {
        if constexpr (g < kEnd) {
            dot4<T>(Format::template weights<g>(block, j), x + 4 * T * g, s);
            dot_groups<T, g + 1, kEnd>(block, j, x, s);
        }
    }

    // s[t] = 16 columns times x, zero point taken off.
    template <int T, int kHalf>
    static void dot_half(const Panel& block, int j, int64_t i, const ActTile* tile, __m512i* s) {
        const int32_t* zero = tile->zero16 + T * (2 * i + kHalf);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) {
            if constexpr (kHasMinimum)
                s[t] = _mm512_setzero_si512();
            else
                s[t] = _mm512_srai_epi32(repeat32(zero + t), 5 - __builtin_ctz(Format::kZeroPoint));
        }
        dot_groups<T, 4 * kHalf, 4 * kHalf + 4>(block, j, tile->q + 32 * T * i, s);
    }

    template <int T>
    static void add(const Panel& block, int j, int64_t i, const ActTile* tile, __m512* acc) {
        const __m512 d = load_f16(block.d);
        const __m512 scale0 = _mm512_mul_ps(d, Format::template scale<0>(block, j));
        const __m512 scale1 = _mm512_mul_ps(d, Format::template scale<1>(block, j));
        __m512i s[T];
        __m512 g[T];
        dot_half<T, 0>(block, j, i, tile, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) g[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), scale0);
        dot_half<T, 1>(block, j, i, tile, s);
        TREADLE_UNROLL for (int t = 0; t < T; ++t) g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), scale1, g[t]);
        if constexpr (kHasMinimum) {
            const __m512 min0 = Format::template min<0>(block, j), min1 = Format::template min<1>(block, j);
            const int32_t* zero = tile->zero16 + 2 * T * i;
            TREADLE_UNROLL for (int t = 0; t < T; ++t) {
                g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(repeat32(zero + t)), min0, g[t]);
                g[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(repeat32(zero + T + t)), min1, g[t]);
            }
        }
        TREADLE_UNROLL for (int t = 0; t < T; ++t) acc[t] =
            _mm512_fmadd_ps(g[t], _mm512_set1_ps(tile->scale[T * i + t]), acc[t]);
    }
};

// Of a pair of bytes per row the one of half v, as 32-bit lanes.
template <int v>
inline __m512 signed_half(const int8_t (*pairs)[2]) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(v == 0 ? _mm512_slli_epi32(wide, 16) : wide, 16));
}

struct Q6K {
    using Panel = PanelQ6_K;
    static constexpr int kZeroPoint = 32;

    template <int g>
    static __m512i weights(const Panel& block, int j) {
        const __m512i v = _mm512_loadu_si512(block.q[j] + 64 * (g % 4));
        const __m512i high = move_bit<2 * (g % 4), 4>(_mm512_loadu_si512(block.h[j][g / 4]));
        return merge(high, _mm512_set1_epi8(48), g < 4 ? low_nibbles(v) : high_nibbles(v));
    }

    template <int v>
    static __m512 scale(const Panel& block, int j) {
        return signed_half<v>(block.s[j]);
    }
};

struct Q3K {
    using Panel = PanelQ3_K;
    static constexpr int kZeroPoint = 4;

    template <int g>
    static __m512i weights(const Panel& block, int j) {
        const __m512i high = move_bit<g, 2>(_mm512_loadu_si512(block.h[j]));
        return merge(high, _mm512_set1_epi8(4), two_bit_group<g>(block.q[j]));
    }

    template <int v>
    static __m512 scale(const Panel& block, int j) {
        return signed_half<v>(block.s[j]);
    }
};

struct Q2K {
    using Panel = PanelQ2_K;

    template <int g>
    static __m512i weights(const Panel& block, int j) {
        return two_bit_group<g>(block.q[j]);
    }

    // The n-th nibble of each row's pair of bytes.
    template <int n>
    static __m512 nibble(const Panel& block, int j) {
        const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.s[j])));
        return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(pairs, 4 * n), _mm512_set1_epi32(15)));
    }

    template <int v>
    static __m512 scale(const Panel& block, int j) {
        return nibble<2 * v>(block, j);
    }

    template <int v>
    static __m512 min(const Panel& block, int j) {
        const __m512 fraction = _mm512_mul_ps(nibble<2 * v + 1>(block, j), _mm512_set1_ps(1.0f / 32));
        return _mm512_mul_ps(load_f16(block.dmin), fraction);
    }
};

}  // namespace

void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Halves<Q2K>>>(panel, num_columns, tile, out);
}

void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Halves<Q3K>>>(panel, num_columns, tile, out);
}

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Whole<Q45K<PanelQ4_K>>>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Whole<Q45K<PanelQ5_K>>>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Halves<Q6K>>>(panel, num_columns, tile, out);
}

void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Whole<IQ4_XS>>>(panel, num_columns, tile, out);
}

void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Whole<TQ2_0>>>(panel, num_columns, tile, out);
}

}  // namespace treadle::avx512_vnni
