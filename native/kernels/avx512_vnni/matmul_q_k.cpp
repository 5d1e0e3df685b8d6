// Products of the formats with blocks of 256 columns: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, TQ2_0.
#include "entries.h"
#include "product.h"

namespace treadle::avx512_vnni {
namespace {

// 16 bytes, one per row, as 32-bit lanes.
inline __m512i load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// What all of these sources share: sub-block j of a block.
template <class Panel, int kZero>
struct SubBlock {
    static constexpr int kBytes = sizeof(Panel) / 8, kZeroPoint = kZero;
    static constexpr bool kHasMinimum = kZero == 0, kPlain = false, kInMemory = true;
    const Panel& block;
    const int j;

    SubBlock(const void* panel, int64_t i)
        : block(static_cast<const Panel*>(panel)[i / 8]), j(static_cast<int>(i % 8)) {}
};

// Scales and minimums of Q4_K and Q5_K.
template <class Panel>
struct PackedScales : SubBlock<Panel, 0> {
    using SubBlock<Panel, 0>::SubBlock;

    template <int n>
    __m512 factor() const {
        const __m512i scales = load_bytes(this->block.s[this->j]);
        if constexpr (n == 0) {
            const __m512i bits = _mm512_and_si512(scales, _mm512_set1_epi32(63));
            return _mm512_mul_ps(load_f16(this->block.d), _mm512_cvtepi32_ps(bits));
        } else {
            const __m512i pair = load_bytes(this->block.m[this->j / 2]);
            const __m512i low = _mm512_and_si512(_mm512_srli_epi32(pair, 4 * (this->j % 2)), _mm512_set1_epi32(15));
            const __m512i bits = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_srli_epi32(scales, 6), 4));
            return _mm512_mul_ps(load_f16(this->block.dmin), _mm512_cvtepi32_ps(bits));
        }
    }
};

struct Q4K : PackedScales<PanelQ4_K> {
    using PackedScales::PackedScales;
    template <int g>
    __m512i weights() const {
        return four_bit_group<g>(block.q[j]);
    }
};

struct Q5K : PackedScales<PanelQ5_K> {
    using PackedScales::PackedScales;
    template <int g>
    __m512i weights() const {
        return five_bit_group<g>(block.q[j], block.h[j]);
    }
};

struct IQ4_XS : SubBlock<PanelIQ4_XS, kIq4ZeroPoint> {
    using SubBlock::SubBlock;
    template <int g>
    __m512i weights() const {
        return coded_group<g, kIq4ZeroPoint>(block.q[j], kIq4Values);
    }
    template <int n>
    __m512 factor() const {
        const __m512i s = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block.s[j])));
        return _mm512_mul_ps(load_f16(block.d), _mm512_cvtepi32_ps(s));
    }
};

struct TQ2_0 : SubBlock<PanelTQ2_0, 1> {
    using SubBlock::SubBlock;
    template <int g>
    __m512i weights() const {
        return two_bit_group<g>(block.q[j]);
    }
    template <int n>
    __m512 factor() const {
        return load_f16(block.d);
    }
};

// Signed scales of both halves, a pair of bytes for each row.
template <class Panel, int kZero>
struct PairedScales : SubBlock<Panel, kZero> {
    using SubBlock<Panel, kZero>::SubBlock;
    template <int n>
    __m512 factor() const {
        const auto* pairs = reinterpret_cast<const __m256i*>(this->block.s[this->j]);
        const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(pairs));
        const __m512i scale = _mm512_srai_epi32(n == 0 ? _mm512_slli_epi32(wide, 16) : wide, 16);
        return _mm512_mul_ps(load_f16(this->block.d), _mm512_cvtepi32_ps(scale));
    }
};

struct Q6K : PairedScales<PanelQ6_K, 32> {
    using PairedScales::PairedScales;
    template <int g>
    __m512i weights() const {
        const __m512i high = move_bit<2 * (g % 4), 4>(_mm512_loadu_si512(block.h[j][g / 4]));
        return merge(high, _mm512_set1_epi8(48), four_bit_group<g>(block.q[j]));
    }
};

struct Q3K : PairedScales<PanelQ3_K, 4> {
    using PairedScales::PairedScales;
    template <int g>
    __m512i weights() const {
        const __m512i high = move_bit<g, 2>(_mm512_loadu_si512(block.h[j]));
        return merge(high, _mm512_set1_epi8(4), two_bit_group<g>(block.q[j]));
    }
};

struct Q2K : SubBlock<PanelQ2_K, 0> {
    using SubBlock::SubBlock;

    template <int g>
    __m512i weights() const {
        return two_bit_group<g>(block.q[j]);
    }

    // Each row has two bytes, the halves of which are scale and minimum of 16 columns.
    template <int n>
    __m512 factor() const {
        constexpr int kShift = n < 2 ? 8 * n : 8 * (n - 2) + 4;
        const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.s[j])));
        const __m512i bits = _mm512_and_si512(_mm512_srli_epi32(pairs, kShift), _mm512_set1_epi32(15));
        const __m512 number = _mm512_cvtepi32_ps(bits);
        if constexpr (n < 2) return _mm512_mul_ps(load_f16(block.d), number);
        return _mm512_mul_ps(load_f16(block.dmin), _mm512_mul_ps(number, _mm512_set1_ps(1.0f / 32)));
    }
};

}  // namespace

void matmul_q2_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<HalvedSubBlocks, Q2K>>(panel, num_columns, tile, out);
}

void matmul_q3_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<HalvedSubBlocks, Q3K>>(panel, num_columns, tile, out);
}

void matmul_q4_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<WholeSubBlocks, Q4K>>(panel, num_columns, tile, out);
}

void matmul_q5_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<WholeSubBlocks, Q5K>>(panel, num_columns, tile, out);
}

void matmul_q6_k(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<HalvedSubBlocks, Q6K>>(panel, num_columns, tile, out);
}

void matmul_iq4_xs(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<WholeSubBlocks, IQ4_XS>>(panel, num_columns, tile, out);
}

void matmul_tq2_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<WholeSubBlocks, TQ2_0>>(panel, num_columns, tile, out);
}

void unpack_q2_k(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<HalvedSubBlocks, Q2K>(panel, num_columns, unpacked);
}

void unpack_q3_k(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<HalvedSubBlocks, Q3K>(panel, num_columns, unpacked);
}

void unpack_q4_k(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<WholeSubBlocks, Q4K>(panel, num_columns, unpacked);
}

void unpack_q5_k(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<WholeSubBlocks, Q5K>(panel, num_columns, unpacked);
}

void unpack_q6_k(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<HalvedSubBlocks, Q6K>(panel, num_columns, unpacked);
}

void unpack_iq4_xs(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<WholeSubBlocks, IQ4_XS>(panel, num_columns, unpacked);
}

void unpack_tq2_0(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<WholeSubBlocks, TQ2_0>(panel, num_columns, unpacked);
}

}  // namespace treadle::avx512_vnni
