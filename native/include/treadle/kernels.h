// The kernel table: every operation whose speed depends on the instruction set. C types only; included by kernel
// sources.
//
// Contract of every entry: no allocation, no exception, no lock, no global state; any alignment of float arrays; the
// result for one token (or one query row) does not depend, bit for bit, on the other tokens or rows of the call.
// Every entry follows the order of operations written beside it, so every table gives the same bits as `ref` (a NaN may
// differ in sign and payload): a model says the same whatever the instruction set.
#pragma once

#include "formats.h"

namespace treadle {

// out[t * 16 + r] = sum over columns of weight(row r, column) * activation(t, column), for the 16 rows of one panel.
// num_columns is a multiple of the format's block. Order of operations (fma = fused, int = exact 32-bit integers):
//   Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4
//                   per block: s = int(sum q*x - zero_point*sum); acc = fma(float(s), d * scale, acc)
//   Q4_1 Q5_1       per block: acc = fma(float(s), d * scale, acc); acc = fma(m, scaled_sum, acc)
//   Q4_K Q5_K       per block, j = 0..7: acc = fma(float(s_j) * (d * scale_j), scale, acc);
//                   acc = fma(-(dmin * min_j), scaled_sum, acc)
//   IQ4_XS TQ2_0    per block, j = 0..7: s_j = int(sum q*x - zero_point*sum); acc = fma(float(s_j) * (d * scale_j),
//                   scale, acc); TQ2_0 has no scale_j
//   Q3_K Q6_K       per block, j = 0..7: s_jv = int(sum of 16 q*x - zero_point*sum of 16 x);
//                   g = float(s_j0) * (d * scale_j0); g = fma(float(s_j1), d * scale_j1, g); acc = fma(g, scale, acc)
//   Q2_K            as Q3_K without zero point, and before acc for v = 0, 1:
//                   g = fma(float(zero16_jv), dmin * (min_jv / 32), g)
//   F32 F16 BF16    acc[k % 2] = fma(w[k], x[k], acc[k % 2]); out = acc[0] + acc[1]
using MatmulFn = void (*)(const void* panel, int64_t num_columns, const ActTile* tile, float* out);

// The same sums added to rows of another tile: out[rows[t] * 16 + r] += sum. For panels that are short and not read one
// after the other; nothing behind them is requested.
using AddMatmulFn = void (*)(const void* panel, int64_t num_columns, const ActTile* tile, const int32_t* rows,
                             float* out);

// The product of one panel with many tiles: unpack() writes bytes and floats that matmul() then takes in the panel's
// place, with the same result.
struct UnpackedProduct {
    int32_t block_bytes;  // of what unpack() writes for 32 columns
    void (*unpack)(const void* panel, int64_t num_columns, void* unpacked);
    MatmulFn matmul;
};

// Writes token `token` of the tile (see ActTile) from x[num_columns]. num_columns is a multiple of 32, any for F32.
using QuantizeFn = void (*)(const float* x, int64_t num_columns, int32_t token, const ActTile* tile);

// The exponential of all that has one, good to 1.02 ulp:
//   x is clamped to kExpLowest .. kExpHighest, where the result is 0 and infinity; NaN stays NaN
//   n = round_to_nearest_even(x * kLog2E); r = fma(-n, kLn2High, x); r = fma(-n, kLn2Low, r)
//   p = kExpPoly[0]; p = fma(p, r, kExpPoly[i]) for i = 1..4; p = fma(p, r * r, r)
//   exp = (p + 1) * 2^n, rounded once where it is subnormal
constexpr float kExpLowest = -110.0f;
constexpr float kExpHighest = 90.0f;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2High = 0x1.62e400p-1f;  // short, so that n * kLn2High is exact
constexpr float kLn2Low = 0x1.7f7d1cp-20f;
constexpr float kExpPoly[5] = {0x1.6a23cep-10f, 0x1.123a20p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};

// The same for code that belongs to no table.
float exp_f32(float x);

// x brought smoothly between -cap and cap, cap * tanh(x / cap):
//   y = x * inverse, inverse = 1 / cap; out = cap * (1 - 2 / (exp(y + y) + 1))
struct SoftCap {
    float cap;  // 0: none
    float inverse;
};

// gate / (1 + exp(-z)) with z = gate * fma(gate * gate, kGeluCubic, kGeluLinear): GELU as its tanh approximation has it
// (Hendrycks and Gimpel 2016), because (1 + tanh(z / 2)) / 2 = 1 / (1 + exp(-z)).
constexpr float kGeluLinear = 0x1.988454p+0f;  // 2 * sqrt(2 / pi)
constexpr float kGeluCubic = 0x1.2444f2p-4f;   // the same times 0.044715

// One KV block against up to kMaxAttendRows query rows of one KV head, as a step of an online softmax (Milakov and
// Gimelshein 2018; Dao et al. 2022): updates max, sum and acc of each row. A row sees the positions first .. limit - 1;
// one with limit 0 stays untouched. What a row does not see has no influence on it, whatever it holds. Order of
// operations for a row and the positions p it sees:
//   s[d % 2] = fma(q[d], k[d][p], s[d % 2]); score[p] = s[0] + s[1], then the soft cap if there is one
//   top = the largest of max and the scores, NaN ignored; correction = exp(max - top)
//   w[p] = exp(score[p] - top), 0 if unseen; total = w[p] + w[p + 16] for p < 16, then halves as in rms_norm
//   acc[d] = acc[d] * correction; acc[d] = fma(w[p], v[p][d], acc[d]) for p = first .. limit - 1
//   max = top; sum = sum * correction + total
struct AttendArgs {
    const uint16_t* k_block;  // f16 [head_dim][32]: positions are the inner index
    const uint16_t* v_block;  // f16 [32][head_dim]
    int32_t head_dim;         // multiple of 8
    int32_t num_rows;         // 1..kMaxAttendRows
    // [tiles][head_dim][kQueryTile], row r in tile r / kQueryTile; scaled already
    const float* q;
    const int32_t* limit;  // [num_rows]: row r sees positions first[r] .. limit[r] - 1 of this block, 0..32
    float* max;            // [num_rows], -inf before the first block
    float* sum;            // [num_rows], 0 before the first block
    float* acc;            // [num_rows][head_dim], 0 before the first block; the caller divides by sum at the end
    // The K the caller turns to next, requested from memory meanwhile; never read, may be null.
    const uint16_t* next_k_block = nullptr;
    const int32_t* first = nullptr;  // [num_rows], below limit[r] where that is not 0; null: 0 for all rows
    SoftCap soft_cap = {};           // of the scores
};

// The same over q8_0 blocks (see formats.h), with queries of 8 bits and all products in exact integers. What a row sees
// of a block is softened around its own maximum b, so that the 15-bit weights are fine where the block matters. Order
// of operations for a row and the positions p it sees, with group j = dims 32j .. 32j + 31:
//   for j: score[p] = fma(float(sum of (k - 128) * q) * k_scale[j][p], q_scale[j], score[p]); then the soft cap
//   b = the largest score, NaN ignored; top = the larger of max and b; e[p] = exp(score[p] - b), 0 if unseen
//   old = exp(max - top), now = exp(b - top); sum = sum * old + total(e) * now, the total as above; max = top
//   for j: m = the largest v_scale[j][p] in sight, by its bits; inverse = 1 / m, 0 where m is 0 or NaN
//   u[p] = round_to_nearest_even((e[p] * 32767) * (v_scale[j][p] * inverse)), 0 where that is NaN
//   acc[d] = fma(float(sum of u[p] * v[p][d]), (now * kUnitWeight) * m, acc[d] * old)
struct AttendQ8Args {
    const uint8_t* k_block;
    const uint8_t* v_block;
    int32_t head_dim;      // multiple of 32
    int32_t num_rows;      // 1..kMaxAttendRows
    const ActTile* q;      // kActQ8, kQueryTile tokens each: row r is token r % kQueryTile of tile r / kQueryTile
    const int32_t* limit;  // these as in AttendArgs
    float* max;
    float* sum;
    float* acc;
    const uint8_t* next_k_block = nullptr;
    const int32_t* first = nullptr;
    SoftCap soft_cap = {};
};
constexpr float kMaxWeight = 32767.0f;
constexpr float kUnitWeight = 1.0f / kMaxWeight;

// Rounds of kPeakOps multiplications and additions in registers, with the instructions of the table's kernels: what
// those are measured against.
using PeakFn = void (*)(int64_t num_rounds);
constexpr int64_t kPeakOps = 12288;  // divisible by what eight, twelve and sixteen sums of any instruction set take

struct KernelTable {
    const char* isa;
    MatmulFn matmul[kNumWeightFormats];           // null where the format is not a weight format
    AddMatmulFn matmul_add[kNumWeightFormats];    // F32, F16 and BF16, else null
    UnpackedProduct unpacked[kNumWeightFormats];  // null where it would not be faster
    QuantizeFn quantize[kNumActFormats];          // by ActFormat

    // out[i] = (x[i] * inv) * weight[i], inv = 1 / sqrt(sum x^2 / n + eps). The sum runs in 16 lanes (lane = i % 16,
    // fma), then halves are added: 16 -> 8 -> 4 -> 2 -> 1. x and out may be the same array.
    void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* out);

    // Rotary embedding of one head in place (Su et al. 2021); cos and sin have `half` entries, 2 * half dims are
    // rotated. rope_adjacent pairs (2i, 2i+1), rope_halves pairs (i, i + half).
    //   a' = a * cos - b * sin (two products, one subtraction, no fma); b' = a * sin + b * cos
    void (*rope_adjacent)(float* head, const float* cos, const float* sin, int32_t half);
    void (*rope_halves)(float* head, const float* cos, const float* sin, int32_t half);

    // out[i] = (gate[i] / (1 + exp(-gate[i]))) * up[i]; out may be gate or up.
    void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
    // out[i] = (gate[i] / (1 + exp(-z))) * up[i], z of kGeluLinear; out may be gate or up.
    void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* out);
    // x[i] with the soft cap, in place.
    void (*soft_cap)(float* x, int64_t n, SoftCap cap);

    // One position (0..31) of a KV block; f32 -> f16, round to nearest even, overflow to infinity.
    void (*store_k)(const float* k, int32_t head_dim, int32_t position, uint16_t* k_block);
    void (*store_v)(const float* v, int32_t head_dim, int32_t position, uint16_t* v_block);

    void (*attend_block)(const AttendArgs* args);
    void (*attend_block_q8_0)(const AttendQ8Args* args);

    PeakFn peak_int8;  // of products of quantised weights
    PeakFn peak_f32;   // fused multiply-adds
};

// Plain C++ in the written order of operations: runs everywhere, and is what other tables are tested against.
extern const KernelTable kRefKernels;

// The table named by `isa` (the name of its folder in native/kernels), or the best one this CPU can run if `isa` is
// null or empty. Returns null for an unknown name or one this CPU cannot run.
const KernelTable* find_kernels(const char* isa);

// Names of all tables this CPU can run, best first, null-terminated.
const char* const* runnable_isas();

// Writes one position (0..31) of the K or V of a q8_0 block, rounded by the table.
void store_k_q8_0(const KernelTable& table, const float* k, int32_t head_dim, int32_t position, uint8_t* k_block);
void store_v_q8_0(const KernelTable& table, const float* v, int32_t head_dim, int32_t position, uint8_t* v_block);

// The activation format a weight format multiplies with.
ActFormat act_format_of(uint32_t weight_format);

// Columns per block (1, 32, 256) and bytes per block of a GGUF row and of a packed panel; 0 for unknown formats.
int64_t block_columns(uint32_t weight_format);
int64_t row_block_bytes(uint32_t weight_format);
int64_t panel_block_bytes(uint32_t weight_format);

// Packs up to 16 rows of GGUF data (row_bytes apart) into one panel; missing rows become zero.
void pack_panel(uint32_t weight_format, const uint8_t* rows, int64_t row_bytes, int32_t num_rows, int64_t num_columns,
                uint8_t* panel);

// Row `row` of a packed panel as f32 (embedding lookup).
void dequantize_panel_row(uint32_t weight_format, const uint8_t* panel, int32_t row, int64_t num_columns, float* out);

}  // namespace treadle
