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
    // Bit j of byte l is the fifth bit of column l of sub-block j.
    uint32_t file_bits[8];
    memcpy(file_bits, file + 16, sizeof file_bits);
    for (int j = 0; j < 8; ++j) {
        uint32_t bits = 0;
        for (int g = 0; g < 8; ++g) bits |= (file_bits[g] >> j & 0x01010101) << g;
        store_word(panel->h[j] + 4 * row, bits);
    }
    for (int p = 0; p < 4; ++p) pack_nibble_pair(file + 48 + 32 * p, row, panel->q[2 * p], panel->q[2 * p + 1]);
}

void pack_block(const uint8_t* file, int row, PanelQ6_K* panel) {
    const uint8_t* low = file;
    const uint8_t* high = file + 128;
    const uint8_t* scales = file + 192;
    panel->d[row] = load_half(file + 208);
    for (int j = 0; j < 8; ++j) memcpy(panel->s[j][row], scales + 2 * j, 2);
    // Each half of the block has sub-blocks n .. n+3: the low nibbles of 32 bytes are one sub-block and the high ones
    // the sub-block two further; bits 2s and 2s+1 of byte l of `high` belong to column l of sub-block n + s.
    for (int n = 0; n < 8; n += 4) {
        pack_nibble_pair(low + 16 * n, row, panel->q[n], panel->q[n + 2]);
        pack_nibble_pair(low + 16 * n + 32, row, panel->q[n + 1], panel->q[n + 3]);
        for (int v = 0; v < 2; ++v) {
            uint32_t word[4];
            memcpy(word, high + 8 * n + 16 * v, sizeof word);
            for (int s = 0; s < 4; ++s) {
                uint32_t bits = 0;
                for (int i = 0; i < 4; ++i) bits |= (word[i] >> 2 * s & 0x03030303) << 2 * i;
                store_word(panel->h[n + s][v] + 4 * row, bits);
            }
        }
    }
}

template <class Panel>
void pack_blocks(const uint8_t* rows, int64_t row_bytes, int32_t num_rows, int64_t num_blocks, uint8_t* out) {
    constexpr int64_t kRowBlockBytes = sizeof(Panel) / kPanelRows;
    Panel* panel = reinterpret_cast<Panel*>(out);
    for (int64_t b = 0; b < num_blocks; ++b) {
        for (int32_t r = 0; r < num_rows; ++r) pack_block(rows + r * row_bytes + b * kRowBlockBytes, r, panel + b);
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
    switch (weight_format) {
        case kF32:
            return pack_columns<uint32_t>(rows, row_bytes, num_rows, num_columns, panel);
        case kF16:
        case kBF16:
            return pack_columns<uint16_t>(rows, row_bytes, num_rows, num_columns, panel);
        case kQ4_0:
            return pack_blocks<PanelQ4_0>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ4_1:
            return pack_blocks<PanelQ4_1>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ5_0:
            return pack_blocks<PanelQ5_0>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ5_1:
            return pack_blocks<PanelQ5_1>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ8_0:
            return pack_blocks<PanelQ8_0>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ4_K:
            return pack_blocks<PanelQ4_K>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ5_K:
            return pack_blocks<PanelQ5_K>(rows, row_bytes, num_rows, num_blocks, panel);
        case kQ6_K:
            return pack_blocks<PanelQ6_K>(rows, row_bytes, num_rows, num_blocks, panel);
    }
}

}  // namespace treadle
