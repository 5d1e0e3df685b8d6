// Products of the formats with blocks of 32 columns: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4.
#include "entries.h"
#include "product.h"

namespace treadle::avx512_vnni {
namespace {

// What all of these sources share: where a block is, and its factors.
template <class Panel, int kZero>
struct Block32 {
    static constexpr int kBytes = sizeof(Panel), kZeroPoint = kZero;
    static constexpr bool kHasMinimum = kZero == 0, kPlain = false, kInMemory = true;
    const Panel& block;

    Block32(const void* panel, int64_t i) : block(static_cast<const Panel*>(panel)[i]) {}

    template <int n>
    __m512 factor() const {
        if constexpr (n == 1)
            return load_f16(block.m);
        else if constexpr (requires { block.e; })
            return load_half_e8m0(block.e);
        else
            return load_f16(block.d);
    }
};

template <class Panel, int kZero>
struct FourBit : Block32<Panel, kZero> {
    using Block32<Panel, kZero>::Block32;
    template <int g>
    __m512i weights() const {
        return four_bit_group<g>(this->block.q);
    }
};

template <class Panel, int kZero>
struct FiveBit : Block32<Panel, kZero> {
    using Block32<Panel, kZero>::Block32;
    template <int g>
    __m512i weights() const {
        return five_bit_group<g>(this->block.q, this->block.h);
    }
};

template <class Panel, const int8_t (&kValues)[16], int kZero>
struct Coded : Block32<Panel, kZero> {
    using Block32<Panel, kZero>::Block32;
    template <int g>
    __m512i weights() const {
        return coded_group<g, kZero>(this->block.q, kValues);
    }
};

struct Q8_0 : Block32<PanelQ8_0, 128> {
    static constexpr bool kPlain = true;
    using Block32::Block32;
    template <int g>
    __m512i weights() const {
        return _mm512_loadu_si512(block.q + 64 * g);
    }
};

using Q4_0 = FourBit<PanelQ4_0, 8>;
using Q4_1 = FourBit<PanelQ4_1, 0>;
using Q5_0 = FiveBit<PanelQ5_0, 16>;
using Q5_1 = FiveBit<PanelQ5_1, 0>;
using IQ4_NL = Coded<PanelIQ4_NL, kIq4Values, kIq4ZeroPoint>;
using MXFP4 = Coded<PanelMXFP4, kMxfp4Values, kMxfp4ZeroPoint>;

}  // namespace

void matmul_q4_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, Q4_0>>(panel, num_columns, tile, out);
}

void matmul_q4_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, Q4_1>>(panel, num_columns, tile, out);
}

void matmul_q5_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, Q5_0>>(panel, num_columns, tile, out);
}

void matmul_q5_1(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, Q5_1>>(panel, num_columns, tile, out);
}

void matmul_q8_0(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, Q8_0>>(panel, num_columns, tile, out);
}

void matmul_iq4_nl(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, IQ4_NL>>(panel, num_columns, tile, out);
}

void matmul_mxfp4(const void* panel, int64_t num_columns, const ActTile* tile, float* out) {
    run_tile<Product<Blocks32, MXFP4>>(panel, num_columns, tile, out);
}

void unpack_q4_0(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<Blocks32, Q4_0>(panel, num_columns, unpacked);
}

void unpack_q4_1(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<Blocks32, Q4_1>(panel, num_columns, unpacked);
}

void unpack_q5_0(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<Blocks32, Q5_0>(panel, num_columns, unpacked);
}

void unpack_q5_1(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<Blocks32, Q5_1>(panel, num_columns, unpacked);
}

void unpack_iq4_nl(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<Blocks32, IQ4_NL>(panel, num_columns, unpacked);
}

void unpack_mxfp4(const void* panel, int64_t num_columns, void* unpacked) {
    unpack<Blocks32, MXFP4>(panel, num_columns, unpacked);
}

}  // namespace treadle::avx512_vnni
