// GGUF rows to panels (layouts in formats.h). Plain C++ on 32-bit words: a word is four columns of one row, the unit
// that the panels interleave, so that packing is moving words and shifting bits within them.
#include <string.h>

#include "formats.h"
#include "treadle/kernels.h"

namespace treadle {

namespace {

constexpr uint32_t kLowNibbles = 0x0f0f0f0f;

uint32_t load_word(const uint8_t* bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

void store_word(uint8_t* bytes, uint32_t word) { memcpy(bytes, &word, sizeof word); }

uint16_t load_half(const uint8_t* bytes) {
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return half;
}

// Blocks of 32 store column l and column 16 + l in one byte, as panels do: words move as they are.
void pack_nibbles(const uint8_t* file, int row, uint8_t* q) {
    for (int i = 0; i < 4; ++i) store_word(q + 64 * i + 4 * row, load_word(file + 4 * i));
}

// Two bits for each of 256 columns: bits 2s and 2s + 1 of byte l of the n-th 32 bytes belong to column l of sub-block
// 4n + s.
void pack_bit_pairs(const uint8_t* file, int row, uint8_t (*q)[2][64]) {
    for (int j = 0; j < 8; ++j) {
        for (int v = 0; v < 2; ++v) {
            const uint8_t* half = file + 32 * (j / 4) + 16 * v;
            uint32_t bits = 0;
            for (int i = 0; i < 4; ++i) bits |= (load_word(half + 4 * i) >> 2 * (j % 4) & 0x03030303) << 2 * i;
            store_word(q[j][v] + 4 * row, bits);
        }
    }
}

// One bit for each of 256 columns: bit j of byte l belongs to column l of sub-block j.
void pack_single_bits(const uint8_t* file, int row, uint8_t (*h)[64]) {
    uint32_t words[8];
    memcpy(words, file, sizeof words);
    for (int j = 0; j < 8; ++j) {
        uint32_t bits = 0;
        for (int g = 0; g < 8; ++g) bits |= (words[g] >> j & 0x01010101) << g;
        store_word(h[j] + 4 * row, bits);
    }
}

// Bit c of `bits` is the fifth bit of column c = 4g + k; it becomes bit g of byte k.
void pack_fifth_bits(uint32_t bits, int row, uint8_t* h) {
    for (int k = 0; k < 4; ++k) {
        uint32_t every_fourth = bits >> k & 0x11111111;
        every_fourth = (every_fourth | every_fourth >> 3) & 0x03030303;
        every_fourth = (every_fourth | every_fourth >> 6) & 0x000f000f;
        h[4 * row + k] = static_cast<uint8_t>(every_fourth | every_fourth >> 12);
    }
}

// K-quants keep two sub-blocks in the halves of 32 bytes: column l of both in byte l.
void pack_nibble_pair(const uint8_t* file, int row, uint8_t* q_low, uint8_t* q_high) {
    for (int i = 0; i < 4; ++i) {
        const uint32_t first = load_word(file + 4 * i);
        const uint32_t second = load_word(file + 16 + 4 * i);
        store_word(q_low + 64 * i + 4 * row, (first & kLowNibbles) | (second & kLowNibbles) << 4);
        store_word(q_high + 64 * i + 4 * row, (first >> 4 & kLowNibbles) | (second & ~kLowNibbles));
    }
}

// The twelve bytes of scales and minimums of Q4_K and Q5_K: six bits each, those of sub-blocks 4..7 in two parts.
template <class Panel>
void pack_k_scales(const uint8_t* file, int row, Panel* panel) {
    uint8_t scale[8];
    uint8_t min[8];
    for (int j = 0; j < 4; ++j) {
        scale[j] = file[j] & 63;
        min[j] = file[j + 4] & 63;
        scale[j + 4] = static_cast<uint8_t>((file[j + 8] & 15) | file[j] >> 6 << 4);
        min[j + 4] = static_cast<uint8_t>(file[j + 8] >> 4 | file[j + 4] >> 6 << 4);
    }
    for (int j = 0; j < 8; ++j) panel->s[j][row] = static_cast<uint8_t>(scale[j] | min[j] >> 4 << 6);
    for (int p = 0; p < 4; ++p) panel->m[p][row] = static_cast<uint8_t>((min[2 * p] & 15) | min[2 * p + 1] << 4);
}

void pack_block(const uint8_t* file, int row, PanelQ4_0* panel) {
    panel->d[row] = load_half(file);
    pack_nibbles(file + 2, row, panel->q);
}

void pack_block(const uint8_t* file, int row, PanelQ4_1* panel) {
    panel->d[row] = load_half(file);
    panel->m[row] = load_half(file + 2);
    pack_nibbles(file + 4, row, panel->q);
}

void pack_block(const uint8_t* file, int row, PanelQ5_0* panel) {
    panel->d[row] = load_half(file);
    pack_fifth_bits(load_word(file + 2), row, panel->h);
    pack_nibbles(file + 6, row, panel->q);
}

void pack_block(const uint8_t* file, int row, PanelQ5_1* panel) {
    panel->d[row] = load_half(file);
    panel->m[row] = load_half(file + 2);
    pack_fifth_bits(load_word(file + 4), row, panel->h);
    pack_nibbles(file + 8, row, panel->q);
}

void pack_block(const uint8_t* file, int row, PanelQ8_0* panel) {
    panel->d[row] = load_half(file);
    for (int g = 0; g < 8; ++g) {
        store_word(panel->q + 64 * g + 4 * row, load_word(file + 2 + 4 * g) ^ 0x80808080);  // int8 + 128
    }
}

void pack_block(const uint8_t* file, int row, PanelQ4_K* panel) {
    panel->d[row] = load_half(file);
    panel->dmin[row] = load_half(file + 2);
    pack_k_scales(file + 4, row, panel);
    for (int p = 0; p < 4; ++p) pack_nibble_pair(file + 16 + 32 * p, row, panel->q[2 * p], panel->q[2 * p + 1]);
}

void pack_block(const uint8_t* file, int row, PanelQ5_K* panel) {
    panel->d[row] = load_half(file);
    panel->dmin[row] = load_half(file + 2);
    pack_k_scales(file + 4, row, panel);
    pack_single_bits(file + 16, row, panel->h);
    for (int p = 0; p < 4; ++p) pack_nibble_pair(file + 48 + 32 * p, row, panel->q[2 * p], panel->q[2 * p + 1]);
}

void pack_block(const uint8_t* file, int row, PanelQ6_K* panel) {
    const uint8_t* low = file;
    const uint8_t* high = file + 128;
    const uint8_t* scales = file + 192;
    panel->d[row] = load_half(file + 208);
    for (int j = 0; j < 8; ++j) memcpy(panel->s[j][row], scales + 2 * j, 2);
    pack_bit_pairs(high, row, panel->h);
    // Each half of the block has sub-blocks n .. n+3: the low nibbles of 32 bytes are one sub-block and the high ones
    // the sub-block two further.
    for (int n = 0; n < 8; n += 4) {
        pack_nibble_pair(low + 16 * n, row, panel->q[n], panel->q[n + 2]);
        pack_nibble_pair(low + 16 * n + 32, row, panel->q[n + 1], panel->q[n + 3]);
    }
}

void pack_block(const uint8_t* file, int row, PanelQ2_K* panel) {
    for (int j = 0; j < 8; ++j) memcpy(panel->s[j][row], file + 2 * j, 2);
    pack_bit_pairs(file + 16, row, panel->q);
    panel->d[row] = load_half(file + 80);
    panel->dmin[row] = load_half(file + 82);
}

void pack_block(const uint8_t* file, int row, PanelQ3_K* panel) {
    pack_single_bits(file, row, panel->h);
    pack_bit_pairs(file + 32, row, panel->q);
    // Scale 8p + 4n + b has its low bits in half p of byte 4n + b and bits 4 and 5 in pair 2p + n of byte 8 + b.
    const uint8_t* scales = file + 96;
    for (int i = 0; i < 16; ++i) {
        const int low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
        panel->s[i / 2][row][i % 2] = static_cast<int8_t>((low | high << 4) - 32);
    }
    panel->d[row] = load_half(file + 108);
}

void pack_block(const uint8_t* file, int row, PanelIQ4_NL* panel) {
    panel->d[row] = load_half(file);
    pack_nibbles(file + 2, row, panel->q);
}

void pack_block(const uint8_t* file, int row, PanelMXFP4* panel) {
    panel->e[row] = file[0];
    pack_nibbles(file + 1, row, panel->q);
}

void pack_block(const uint8_t* file, int row, PanelIQ4_XS* panel) {
    panel->d[row] = load_half(file);
    const int high = load_half(file + 2);
    for (int j = 0; j < 8; ++j) {
        const int low = file[4 + j / 2] >> j % 2 * 4 & 15;
        panel->s[j][row] = static_cast<int8_t>((low | (high >> 2 * j & 3) << 4) - 32);
        pack_nibbles(file + 8 + 16 * j, row, panel->q[j]);
    }
}

void pack_block(const uint8_t* file, int row, PanelTQ2_0* panel) {
    pack_bit_pairs(file, row, panel->q);
    panel->d[row] = load_half(file + 64);
}

// A byte of TQ1_0 is a fraction of 256 whose digits in base three are the quants of five columns, from the most
// significant on.
struct PanelTQ1_0 : PanelTQ2_0 {};

void pack_block(const uint8_t* file, int row, PanelTQ1_0* panel) {
    uint8_t pairs[66] = {};
    int column = 0;
    // Runs of so many bytes hold so many digits each; a run's columns go through its bytes first, then their digits.
    const auto unpack = [&](const uint8_t* run, int num_bytes, int num_digits) {
        uint32_t power = 1;
        for (int digit = 0; digit < num_digits; ++digit, power *= 3) {
            for (int byte = 0; byte < num_bytes; ++byte, ++column) {
                const uint32_t q = (run[byte] * power & 255) * 3 >> 8;
                pairs[column / 128 * 32 + column % 32] |= static_cast<uint8_t>(q << column / 32 % 4 * 2);
            }
        }
    };
    unpack(file, 32, 5);
    unpack(file + 32, 16, 5);
    unpack(file + 48, 4, 4);
    memcpy(pairs + 64, file + 52, 2);
    pack_block(pairs, row, static_cast<PanelTQ2_0*>(panel));
}

struct Rows {
    const uint8_t* first;
    int64_t stride_bytes;
    int64_t block_bytes;
    int32_t count;
};

template <class Panel>
void pack_blocks(const Rows& rows, int64_t num_blocks, uint8_t* out) {
    Panel* panel = reinterpret_cast<Panel*>(out);
    for (int64_t b = 0; b < num_blocks; ++b) {
        for (int32_t r = 0; r < rows.count; ++r) {
            pack_block(rows.first + r * rows.stride_bytes + b * rows.block_bytes, r, panel + b);
        }
    }
}

// Float formats: a transposition, in pieces of 16 columns so that the lines being written stay in the first cache.
template <class Element>
void pack_columns(const uint8_t* rows, int64_t row_bytes, int32_t num_rows, int64_t num_columns, uint8_t* out) {
    constexpr int64_t kPiece = 16;
    for (int64_t first = 0; first < num_columns; first += kPiece) {
        const int64_t count = num_columns - first < kPiece ? num_columns - first : kPiece;
        for (int32_t r = 0; r < num_rows; ++r) {
            Element piece[kPiece];
            memcpy(piece, rows + r * row_bytes + first * sizeof(Element), count * sizeof(Element));
            for (int64_t c = 0; c < count; ++c) {
                memcpy(out + ((first + c) * kPanelRows + r) * sizeof(Element), &piece[c], sizeof(Element));
            }
        }
    }
}

}  // namespace

void pack_panel(uint32_t weight_format, const uint8_t* rows, int64_t row_bytes, int32_t num_rows, int64_t num_columns,
                uint8_t* panel) {
    const int64_t columns = block_columns(weight_format);
    if (columns == 0) return;
    const int64_t num_blocks = num_columns / columns;
    if (num_rows < kPanelRows) memset(panel, 0, static_cast<size_t>(num_blocks * panel_block_bytes(weight_format)));
    const Rows blocks = {rows, row_bytes, row_block_bytes(weight_format), num_rows};
    switch (weight_format) {
        case kF32:
            return pack_columns<uint32_t>(rows, row_bytes, num_rows, num_columns, panel);
        case kF16:
        case kBF16:
            return pack_columns<uint16_t>(rows, row_bytes, num_rows, num_columns, panel);
        case kQ4_0:
            return pack_blocks<PanelQ4_0>(blocks, num_blocks, panel);
        case kQ4_1:
            return pack_blocks<PanelQ4_1>(blocks, num_blocks, panel);
        case kQ5_0:
            return pack_blocks<PanelQ5_0>(blocks, num_blocks, panel);
        case kQ5_1:
            return pack_blocks<PanelQ5_1>(blocks, num_blocks, panel);
        case kQ8_0:
            return pack_blocks<PanelQ8_0>(blocks, num_blocks, panel);
        case kQ4_K:
            return pack_blocks<PanelQ4_K>(blocks, num_blocks, panel);
        case kQ5_K:
            return pack_blocks<PanelQ5_K>(blocks, num_blocks, panel);
        case kQ6_K:
            return pack_blocks<PanelQ6_K>(blocks, num_blocks, panel);
        case kQ2_K:
            return pack_blocks<PanelQ2_K>(blocks, num_blocks, panel);
        case kQ3_K:
            return pack_blocks<PanelQ3_K>(blocks, num_blocks, panel);
        case kIQ4_NL:
            return pack_blocks<PanelIQ4_NL>(blocks, num_blocks, panel);
        case kIQ4_XS:
            return pack_blocks<PanelIQ4_XS>(blocks, num_blocks, panel);
        case kMXFP4:
            return pack_blocks<PanelMXFP4>(blocks, num_blocks, panel);
        case kTQ1_0:
            return pack_blocks<PanelTQ1_0>(blocks, num_blocks, panel);
        case kTQ2_0:
            return pack_blocks<PanelTQ2_0>(blocks, num_blocks, panel);
    }
}

}  // namespace treadle
