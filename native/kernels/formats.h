// Memory layouts that packing and every kernel table share. C headers only: kernel sources include this file.
//
// Weights. A panel holds 16 output rows. Its columns (the K of the product) are cut into blocks of 32 (Q4_0 ... Q8_0),
// 256 (K-quants) or 1 (float formats), stored one after the other: block b of a panel starts at panel + b *
// sizeof(block). Weights are unsigned, so that one unsigned-by-signed dot instruction serves 16 rows x 4 columns:
//   group g of a 32-column sub-block = columns 4g .. 4g+3;  byte (16 * 4 layout) index inside a group: row * 4 + column
//   % 4.
// Nibbles: byte q[64 * i + 4 * row + k] (i = 0..3) holds column 4i + k in its low half and column 16 + 4i + k in its
// high half: the low halves of vector i are group i, the high halves are group i + 4. Single bits: bit g of byte h[4 *
// row + k] belongs to column 4g + k. Bit pairs: bits 2i and 2i + 1 of byte q[v][4 * row + k] (v = 0, 1) belong to
// column 16v + 4i + k. Rows past the end of the matrix are all zero bytes (scale 0), so they produce 0.
//
// KV blocks, 32 positions of one KV head. f16: K is [head_dim][32], V is [32][head_dim]. q8_0 rounds 32 dims of a
// position to int8 with one scale, as activations are (below), and keeps the scale as f16; head_dim is a multiple
// of 32. The order is the one in which dot instructions take the bytes:
//   K: bytes [head_dim / 4][32 positions][4 dims], value = scale * (byte - 128); f16 scales [head_dim / 32][32
//   positions] V: int8 [32 / 2][head_dim][2 positions], value = scale * int8;               f16 scales [head_dim /
//   32][32 positions]
//
// Activations. Tokens of a step are cut into tiles of T <= 8 tokens; see ActTile.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace treadle {

enum { kPanelRows = 16, kMaxTile = 8, kKvBlockTokens = 32, kMaxAttendRows = 32, kQueryTile = 8 };

// Numbers are the ggml type ids of the GGUF specification.
enum WeightFormat : uint32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ2_K = 10,
    kQ3_K = 11,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kIQ4_NL = 20,
    kIQ4_XS = 23,
    kBF16 = 30,
    kTQ1_0 = 34,
    kTQ2_0 = 35,
    kMXFP4 = 39,
    kNumWeightFormats = 40,
};

// value = d * (q - 8)
struct PanelQ4_0 {
    uint8_t q[256];
    uint16_t d[16];  // f16, one per row, as every d, m and dmin below
};

// value = d * q + m
struct PanelQ4_1 {
    uint8_t q[256];
    uint16_t d[16];
    uint16_t m[16];
};

// value = d * (q - 16), q of five bits
struct PanelQ5_0 {
    uint8_t q[256];
    uint8_t h[64];
    uint16_t d[16];
};

// value = d * q + m, q of five bits
struct PanelQ5_1 {
    uint8_t q[256];
    uint8_t h[64];
    uint16_t d[16];
    uint16_t m[16];
};

// value = d * (q - 128); q[64 * g + 4 * row + k] is column 4g + k, g = 0..7
struct PanelQ8_0 {
    uint8_t q[512];
    uint16_t d[16];
};

// What the four-bit codes of IQ4_NL and IQ4_XS and those of MXFP4 stand for. Unsigned weights are 128 and 16 more.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int kIq4ZeroPoint = 128;
constexpr int kMxfp4ZeroPoint = 16;

// value = d * kIq4Values[q]
struct PanelIQ4_NL {
    uint8_t q[256];
    uint16_t d[16];
};

// value = 2^(e - 128) * kMxfp4Values[q]: the values are twice those of the OCP specification, the power is half its
// own.
struct PanelMXFP4 {
    uint8_t q[256];
    uint8_t e[16];
};

// value = d * s[j] * kIq4Values[q], j = the sub-block of 32 columns. The file has six bits a scale.
struct PanelIQ4_XS {
    uint8_t q[8][256];
    int8_t s[8][16];
    uint16_t d[16];
};

// value = d * (q - 1), q of two bits, as bit pairs. Also what TQ1_0 becomes, which has five such q in eight bits.
struct PanelTQ2_0 {
    uint8_t q[8][2][64];
    uint16_t d[16];
};

// value = d * scale[j] * q - dmin * min[j], j = the sub-block of 32 columns; scale and min have six bits:
//   scale[j] of row r = s[j][r] & 63
//   min[2p]   of row r = (m[p][r] & 15) | (s[2p][r] >> 6) << 4
//   min[2p+1] of row r = (m[p][r] >> 4) | (s[2p+1][r] >> 6) << 4
struct PanelQ4_K {
    uint8_t q[8][256];
    uint8_t s[8][16];
    uint8_t m[4][16];
    uint16_t d[16];
    uint16_t dmin[16];
};

// As Q4_K with fifth bits, one h per sub-block.
struct PanelQ5_K {
    uint8_t q[8][256];
    uint8_t h[8][64];
    uint8_t s[8][16];
    uint8_t m[4][16];
    uint16_t d[16];
    uint16_t dmin[16];
};

// value = d * scale * q - dmin * min, q of two bits, as bit pairs. The halves of s[j][r][v] are scale and min of
// columns 32j + 16v .. 32j + 16v + 15 of row r.
struct PanelQ2_K {
    uint8_t q[8][2][64];
    uint8_t s[8][16][2];
    uint16_t d[16];
    uint16_t dmin[16];
};

// value = d * s * (q - 4), q of three bits: the low two as bit pairs, the third as single bits. s[j][r][v] is the scale
// of columns 32j + 16v .. 32j + 16v + 15 of row r; the file has six bits for it.
struct PanelQ3_K {
    uint8_t q[8][2][64];
    uint8_t h[8][64];
    int8_t s[8][16][2];
    uint16_t d[16];
};

// value = d * s * (q - 32), q of six bits: the low four as nibbles, the high two as bit pairs. s[j][r][v] is the scale
// of columns 32j + 16v .. 32j + 16v + 15 of row r.
struct PanelQ6_K {
    uint8_t q[8][256];
    uint8_t h[8][2][64];
    int8_t s[8][16][2];
    uint16_t d[16];
    uint8_t unused[32];  // every block begins with a cache line: vectors across two lines cost a product 4 to 8 %
};

// One column of the float formats.
struct PanelF32 {
    float w[16];
};
struct PanelF16 {
    uint16_t w[16];  // f16 or bf16
};

// Bytes of K or of V in a q8_0 block.
constexpr size_t kv_q8_0_bytes(int32_t head_dim) { return static_cast<size_t>(head_dim) * (kKvBlockTokens + 2); }

constexpr float kMinAmax = 1e-36f;

// How the activations of a product are held; each weight format wants one of the two.
enum ActFormat {
    kActF32 = 0,  // float formats
    kActQ8 = 1,   // all others: int8 with one scale per 32 columns
    kNumActFormats = 2,
};

// T = num_tokens activations, quantised once and used by every panel. Token t of the tile is always the inner index, so
// a kernel walks one stream. Only the arrays of the tile's format are set.
//   quantisation: amax = max |x| of the block, scale = amax / 127, q = round_to_nearest_even(x * (127 / amax))
//   amax < kMinAmax (127 / amax could overflow): scale = 0, q = 0
//   an infinity or NaN in the block: scale = NaN, q = 0, so that the products of a broken model end as NaN, never as a
//   number
// K-quants would allow one scale per 256 columns. But hidden states have outliers that then drown their 255 neighbours:
// on Qwen2.5-Coder-1.5B Q4_K_M a scale per 32 lowers the divergence from unrounded activations about eightfold.
struct ActTile {
    int32_t num_tokens;
    int8_t* q;          // kActQ8: [K / 4][T][4]
    float* scale;       // kActQ8: [K / 32][T]
    int32_t* zero32;    // kActQ8: [K / 32][T], -128 times the sum of the block's q: for zero points
    float* scaled_sum;  // kActQ8: [K / 32][T], scale * the sum of the block's q
    int32_t* zero16;    // kActQ8: [K / 16][T], -32 times the sum of 16 q: for zero points and minimums of 16 columns
    float* x;           // kActF32: [K][T]
};

}  // namespace treadle
