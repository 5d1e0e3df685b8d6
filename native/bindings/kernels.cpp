// The submodule _native.kernels: single kernels for tests and measurements. Nothing in the package itself calls it.
// Every array a kernel sees lies against a guard page, so each call is also a test of bounds.
#include "treadle/kernels.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "guarded.h"
#include "module.h"
#include "treadle/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace treadle::bindings {

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Cube = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array = nb::ndarray<nb::numpy, T>;

template <class T>
Array<T> to_numpy(const Guarded<T>& from, std::vector<size_t> shape) {
    T* copy = new T[from.count() + 1];
    if (from.count() > 0) memcpy(copy, from.data(), from.count() * sizeof(T));
    nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Array<T>(copy, shape.size(), shape.data(), owner);
}

const KernelTable& table_of(const std::string& isa) {
    const KernelTable* table = find_kernels(isa.c_str());
    if (table == nullptr) throw UsageError("kernel table '" + isa + "' is unknown or cannot run on this CPU");
    return *table;
}

void require(bool condition, const char* message) {
    if (!condition) throw UsageError(message);
}

// The arrays of an ActTile, sized for one activation format.
struct TileArrays {
    Guarded<int8_t> q;
    Guarded<float> scale;
    Guarded<int32_t> zero32;
    Guarded<float> scaled_sum;
    Guarded<int32_t> zero16;
    Guarded<float> x;
    ActTile tile;

    TileArrays(ActFormat format, size_t columns, size_t tokens)
        : q(format == kActF32 ? 0 : columns * tokens),
          scale(format == kActF32 ? 0 : columns / 32 * tokens),
          zero32(format == kActF32 ? 0 : columns / 32 * tokens),
          scaled_sum(format == kActF32 ? 0 : columns / 32 * tokens),
          zero16(format == kActF32 ? 0 : columns / 16 * tokens),
          x(format == kActF32 ? columns * tokens : 0),
          tile{static_cast<int32_t>(tokens),
               q.data(),
               scale.data(),
               zero32.data(),
               scaled_sum.data(),
               zero16.data(),
               x.data()} {}
};

void fill_tile(const KernelTable& table, ActFormat format, const float* x, size_t columns, TileArrays* arrays) {
    for (int32_t t = 0; t < arrays->tile.num_tokens; ++t) {
        const Guarded<float> token(columns, x + t * columns);
        table.quantize[format](token.data(), static_cast<int64_t>(columns), t, &arrays->tile);
    }
}

ActFormat checked_act_format(int act_format, size_t columns) {
    require(act_format >= kActF32 && act_format < kNumActFormats, "act_format must be 0 (f32) or 1 (q8)");
    require(act_format == kActF32 || columns % 32 == 0, "the number of columns must be a multiple of 32");
    return static_cast<ActFormat>(act_format);
}

// The columns of `rows`; throws unless rows are whole blocks of a known format.
size_t checked_columns(uint32_t weight_format, const Matrix<uint8_t>& rows) {
    const size_t block_bytes = static_cast<size_t>(row_block_bytes(weight_format));
    require(block_bytes > 0, "unknown weight format");
    require(rows.shape(1) % block_bytes == 0, "row bytes must be whole blocks of the weight format");
    return rows.shape(1) / block_bytes * static_cast<size_t>(block_columns(weight_format));
}

// Packs panel `index` of `rows`, each row read from a guarded copy of its own.
void pack_guarded(uint32_t weight_format, const Matrix<uint8_t>& rows, size_t index, size_t columns,
                  Guarded<uint8_t>* panel) {
    const size_t first = index * kPanelRows;
    const size_t count = std::min<size_t>(kPanelRows, rows.shape(0) - first);
    const size_t row_bytes = rows.shape(1);
    const Guarded<uint8_t> copy(count * row_bytes, rows.data() + first * row_bytes);
    pack_panel(weight_format, copy.data(), static_cast<int64_t>(row_bytes), static_cast<int32_t>(count),
               static_cast<int64_t>(columns), panel->data());
}

size_t panel_bytes(uint32_t weight_format, size_t columns) {
    return columns / static_cast<size_t>(block_columns(weight_format)) *
           static_cast<size_t>(panel_block_bytes(weight_format));
}

Array<float> matmul(const std::string& isa, uint32_t weight_format, Matrix<uint8_t> rows, Matrix<float> x) {
    const KernelTable& table = table_of(isa);
    const size_t columns = checked_columns(weight_format, rows);
    require(x.shape(1) == columns, "x must have as many columns as the weights");
    const ActFormat act_format = act_format_of(weight_format);
    const size_t num_rows = rows.shape(0);
    const size_t num_tokens = x.shape(0);
    Guarded<float> out(num_tokens * num_rows);
    for (size_t first_token = 0; first_token < num_tokens; first_token += kMaxTile) {
        const size_t tokens = std::min<size_t>(kMaxTile, num_tokens - first_token);
        TileArrays arrays(act_format, columns, tokens);
        fill_tile(table, act_format, x.data() + first_token * columns, columns, &arrays);
        for (size_t first_row = 0; first_row < num_rows; first_row += kPanelRows) {
            Guarded<uint8_t> panel(panel_bytes(weight_format, columns));
            pack_guarded(weight_format, rows, first_row / kPanelRows, columns, &panel);
            Guarded<float> result(tokens * kPanelRows);
            table.matmul[weight_format](panel.data(), static_cast<int64_t>(columns), &arrays.tile, result.data());
            const size_t count = std::min<size_t>(kPanelRows, num_rows - first_row);
            for (size_t t = 0; t < tokens; ++t) {
                memcpy(out.data() + (first_token + t) * num_rows + first_row, result.data() + t * kPanelRows,
                       count * sizeof(float));
            }
        }
    }
    return to_numpy(out, {num_tokens, num_rows});
}

nb::dict quantize(const std::string& isa, int act_format, Matrix<float> x) {
    const KernelTable& table = table_of(isa);
    const size_t columns = x.shape(1);
    const size_t tokens = x.shape(0);
    const ActFormat format = checked_act_format(act_format, columns);
    require(tokens >= 1 && tokens <= kMaxTile, "a tile holds 1 to 8 tokens");
    TileArrays arrays(format, columns, tokens);
    fill_tile(table, format, x.data(), columns, &arrays);
    nb::dict out;
    if (format == kActF32) {
        out["x"] = to_numpy(arrays.x, {columns, tokens});
        return out;
    }
    out["q"] = to_numpy(arrays.q, {columns / 4, tokens, 4});
    out["scale"] = to_numpy(arrays.scale, {columns / 32, tokens});
    out["zero32"] = to_numpy(arrays.zero32, {columns / 32, tokens});
    out["scaled_sum"] = to_numpy(arrays.scaled_sum, {columns / 32, tokens});
    out["zero16"] = to_numpy(arrays.zero16, {columns / 16, tokens});
    return out;
}

Array<float> dequantize(uint32_t weight_format, Matrix<uint8_t> rows) {
    const size_t columns = checked_columns(weight_format, rows);
    const size_t num_rows = rows.shape(0);
    Guarded<float> out(num_rows * columns);
    for (size_t first_row = 0; first_row < num_rows; first_row += kPanelRows) {
        Guarded<uint8_t> panel(panel_bytes(weight_format, columns));
        pack_guarded(weight_format, rows, first_row / kPanelRows, columns, &panel);
        for (size_t r = first_row; r < std::min(num_rows, first_row + kPanelRows); ++r) {
            Guarded<float> row(columns);
            dequantize_panel_row(weight_format, panel.data(), static_cast<int32_t>(r - first_row),
                                 static_cast<int64_t>(columns), row.data());
            if (columns > 0) memcpy(out.data() + r * columns, row.data(), columns * sizeof(float));
        }
    }
    return to_numpy(out, {num_rows, columns});
}

Array<float> rms_norm(const std::string& isa, Vector<float> x, Vector<float> weight, float eps, bool in_place) {
    const size_t n = x.shape(0);
    require(weight.shape(0) == n, "x and weight must have the same length");
    Guarded<float> input(n, x.data());
    const Guarded<float> factors(n, weight.data());
    Guarded<float> out(n);
    Guarded<float>& target = in_place ? input : out;
    table_of(isa).rms_norm(input.data(), factors.data(), static_cast<int64_t>(n), eps, target.data());
    return to_numpy(target, {n});
}

Array<float> rope(const std::string& isa, Vector<float> head, Vector<float> cos, Vector<float> sin, bool adjacent) {
    const size_t half = cos.shape(0);
    require(sin.shape(0) == half && head.shape(0) == 2 * half, "head must be twice as long as cos and sin");
    Guarded<float> out(2 * half, head.data());
    const Guarded<float> cosines(half, cos.data());
    const Guarded<float> sines(half, sin.data());
    const KernelTable& table = table_of(isa);
    (adjacent ? table.rope_adjacent : table.rope_halves)(out.data(), cosines.data(), sines.data(),
                                                         static_cast<int32_t>(half));
    return to_numpy(out, {2 * half});
}

Array<float> gated(const std::string& isa, Vector<float> gate, Vector<float> up, const std::string& into, bool gelu) {
    const size_t n = gate.shape(0);
    require(up.shape(0) == n, "gate and up must have the same length");
    require(into == "out" || into == "gate" || into == "up", "into must be 'out', 'gate' or 'up'");
    Guarded<float> gates(n, gate.data());
    Guarded<float> ups(n, up.data());
    Guarded<float> out(n);
    Guarded<float>& target = into == "gate" ? gates : into == "up" ? ups : out;
    const KernelTable& table = table_of(isa);
    (gelu ? table.gelu_mul : table.silu_mul)(gates.data(), ups.data(), static_cast<int64_t>(n), target.data());
    return to_numpy(target, {n});
}

SoftCap soft_cap_of(float cap) { return cap > 0.0f ? SoftCap{cap, 1.0f / cap} : SoftCap{}; }

Array<float> soft_cap(const std::string& isa, Vector<float> x, float cap) {
    require(cap > 0.0f, "the cap must be above 0");
    Guarded<float> values(x.shape(0), x.data());
    table_of(isa).soft_cap(values.data(), static_cast<int64_t>(x.shape(0)), soft_cap_of(cap));
    return to_numpy(values, {x.shape(0)});
}

Array<uint16_t> store(const std::string& isa, Vector<float> values, int32_t position, Matrix<uint16_t> block,
                      bool is_key) {
    const size_t head_dim = values.shape(0);
    require(head_dim % 8 == 0, "head_dim must be a multiple of 8");
    require(position >= 0 && position < kKvBlockTokens, "position must be 0 to 31");
    require(block.shape(0) * block.shape(1) == head_dim * kKvBlockTokens, "block must hold 32 positions of head_dim");
    Guarded<uint16_t> out(head_dim * kKvBlockTokens, block.data());
    const Guarded<float> input(head_dim, values.data());
    const KernelTable& table = table_of(isa);
    (is_key ? table.store_k : table.store_v)(input.data(), static_cast<int32_t>(head_dim), position, out.data());
    return to_numpy(out, {block.shape(0), block.shape(1)});
}

using Firsts = std::optional<Matrix<int32_t>>;

// A row that sees anything of a block sees at least the position before its limit.
void check_sight(const Matrix<int32_t>& limits, const Firsts& firsts) {
    if (!firsts) return;
    require(firsts->shape(0) == limits.shape(0) && firsts->shape(1) == limits.shape(1), "firsts must be as limits");
    for (size_t i = 0; i < limits.shape(0) * limits.shape(1); ++i) {
        const int32_t first = firsts->data()[i], limit = limits.data()[i];
        require(limit == 0 || (first >= 0 && first < limit), "firsts must be from 0 to below the limit");
    }
}

void check_attend_shapes(const Matrix<float>& q, const Cube<uint16_t>& k_blocks, const Cube<uint16_t>& v_blocks,
                         const Matrix<int32_t>& limits) {
    const size_t rows = q.shape(0);
    const size_t head_dim = q.shape(1);
    const size_t num_blocks = k_blocks.shape(0);
    require(rows >= 1 && rows <= kMaxAttendRows, "1 to 32 query rows");
    require(head_dim % 8 == 0, "head_dim must be a multiple of 8");
    require(k_blocks.shape(1) == head_dim && k_blocks.shape(2) == kKvBlockTokens,
            "k_blocks must be [blocks, head_dim, 32]");
    require(v_blocks.shape(0) == num_blocks && v_blocks.shape(1) == kKvBlockTokens && v_blocks.shape(2) == head_dim,
            "v_blocks must be [blocks, 32, head_dim]");
    require(limits.shape(0) == num_blocks && limits.shape(1) == rows, "limits must be [blocks, rows]");
}

std::tuple<Array<float>, Array<float>, Array<float>> attend(const std::string& isa, Matrix<float> q,
                                                            Cube<uint16_t> k_blocks, Cube<uint16_t> v_blocks,
                                                            Matrix<int32_t> limits, Firsts firsts, float cap) {
    const KernelTable& table = table_of(isa);
    const size_t rows = q.shape(0);
    const size_t head_dim = q.shape(1);
    const size_t num_blocks = k_blocks.shape(0);
    const size_t block_values = head_dim * kKvBlockTokens;
    check_attend_shapes(q, k_blocks, v_blocks, limits);
    check_sight(limits, firsts);
    Guarded<float> transposed((rows + kQueryTile - 1) / kQueryTile * kQueryTile * head_dim);
    for (size_t r = 0; r < rows; ++r) {
        float* tile = transposed.data() + r / kQueryTile * kQueryTile * head_dim;
        for (size_t d = 0; d < head_dim; ++d) tile[d * kQueryTile + r % kQueryTile] = q.data()[r * head_dim + d];
    }
    Guarded<float> max(rows), sum(rows), acc(rows * head_dim);
    std::fill_n(max.data(), rows, -INFINITY);
    std::fill_n(sum.data(), rows, 0.0f);
    std::fill_n(acc.data(), rows * head_dim, 0.0f);
    const Guarded<uint16_t> untouchable(0);  // the next K, which may be requested but not read
    for (size_t b = 0; b < num_blocks; ++b) {
        const Guarded<uint16_t> k(block_values, k_blocks.data() + b * block_values);
        const Guarded<uint16_t> v(block_values, v_blocks.data() + b * block_values);
        const Guarded<int32_t> limit(rows, limits.data() + b * rows);
        const Guarded<int32_t> first(rows, (firsts ? *firsts : limits).data() + b * rows);
        const AttendArgs args{k.data(),
                              v.data(),
                              static_cast<int32_t>(head_dim),
                              static_cast<int32_t>(rows),
                              transposed.data(),
                              limit.data(),
                              max.data(),
                              sum.data(),
                              acc.data(),
                              untouchable.data(),
                              firsts ? first.data() : nullptr,
                              soft_cap_of(cap)};
        table.attend_block(&args);
    }
    return {to_numpy(max, {rows}), to_numpy(sum, {rows}), to_numpy(acc, {rows, head_dim})};
}

// K or V of positions [32, head_dim] as one half of a q8_0 block.
Array<uint8_t> store_q8_0(const std::string& isa, Matrix<float> values, bool is_key) {
    const size_t head_dim = values.shape(1);
    require(head_dim % 32 == 0 && values.shape(0) <= kKvBlockTokens, "up to 32 positions of a multiple of 32 values");
    Guarded<uint8_t> out(kv_q8_0_bytes(static_cast<int32_t>(head_dim)));
    std::fill_n(out.data(), out.count(), uint8_t{0});
    for (size_t p = 0; p < values.shape(0); ++p) {
        const Guarded<float> input(head_dim, values.data() + p * head_dim);
        (is_key ? store_k_q8_0 : store_v_q8_0)(table_of(isa), input.data(), static_cast<int32_t>(head_dim),
                                               static_cast<int32_t>(p), out.data());
    }
    return to_numpy(out, {out.count()});
}

std::tuple<Array<float>, Array<float>, Array<float>> attend_q8_0(const std::string& isa, Matrix<float> q,
                                                                 Matrix<uint8_t> k_blocks, Matrix<uint8_t> v_blocks,
                                                                 Matrix<int32_t> limits, Firsts firsts, float cap) {
    const KernelTable& table = table_of(isa);
    const size_t rows = q.shape(0), head_dim = q.shape(1), bytes = kv_q8_0_bytes(static_cast<int32_t>(head_dim));
    require(rows >= 1 && rows <= kMaxAttendRows && head_dim % 32 == 0, "1 to 32 query rows of a multiple of 32 values");
    require(k_blocks.shape(1) == bytes && v_blocks.shape(1) == bytes, "blocks must be [blocks, 34 * head_dim]");
    require(limits.shape(0) == k_blocks.shape(0) && limits.shape(1) == rows, "limits must be [blocks, rows]");
    check_sight(limits, firsts);
    std::deque<TileArrays> arrays;
    std::vector<ActTile> tiles;
    for (size_t r = 0; r < rows; ++r) {
        if (r % kQueryTile == 0) tiles.push_back(arrays.emplace_back(kActQ8, head_dim, kQueryTile).tile);
        const Guarded<float> row(head_dim, q.data() + r * head_dim);
        table.quantize[kActQ8](row.data(), static_cast<int64_t>(head_dim), static_cast<int32_t>(r % kQueryTile),
                               &tiles.back());
    }
    Guarded<float> max(rows), sum(rows), acc(rows * head_dim);
    std::fill_n(max.data(), rows, -INFINITY);
    std::fill_n(sum.data(), rows, 0.0f);
    std::fill_n(acc.data(), rows * head_dim, 0.0f);
    const Guarded<uint8_t> untouchable(0);  // the next K, which may be requested but not read
    for (size_t b = 0; b < k_blocks.shape(0); ++b) {
        const Guarded<uint8_t> k(bytes, k_blocks.data() + b * bytes), v(bytes, v_blocks.data() + b * bytes);
        const Guarded<int32_t> limit(rows, limits.data() + b * rows);
        const Guarded<int32_t> first(rows, (firsts ? *firsts : limits).data() + b * rows);
        const AttendQ8Args args{k.data(),
                                v.data(),
                                static_cast<int32_t>(head_dim),
                                static_cast<int32_t>(rows),
                                tiles.data(),
                                limit.data(),
                                max.data(),
                                sum.data(),
                                acc.data(),
                                untouchable.data(),
                                firsts ? first.data() : nullptr,
                                soft_cap_of(cap)};
        table.attend_block_q8_0(&args);
    }
    return {to_numpy(max, {rows}), to_numpy(sum, {rows}), to_numpy(acc, {rows, head_dim})};
}

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (const char* const* name = runnable_isas(); *name != nullptr; ++name) names.emplace_back(*name);
    return names;
}

}  // namespace

void bind_kernels(nb::module_& m) {
    nb::module_ kernels = m.def_submodule("kernels", "Single kernels, for tests and measurements.");
    kernels.def("runnable_isas", isa_names, "Names of the kernel tables this CPU can run, best first.");
    kernels.def("matmul", matmul, "isa"_a, "weight_format"_a, "rows"_a, "x"_a,
                "Product of x [tokens, columns] with GGUF rows [rows, row_bytes]: f32 [tokens, rows].");
    kernels.def("quantize", quantize, "isa"_a, "act_format"_a, "x"_a,
                "The arrays of one activation tile for x [1..8 tokens, columns].");
    kernels.def("dequantize", dequantize, "weight_format"_a, "rows"_a, "GGUF rows packed and read back as f32.");
    kernels.def("rms_norm", rms_norm, "isa"_a, "x"_a, "weight"_a, "eps"_a, "in_place"_a = false,
                "Root mean square norm of one vector.");
    kernels.def("rope", rope, "isa"_a, "head"_a, "cos"_a, "sin"_a, "adjacent"_a, "Rotary embedding of one head.");
    kernels.def("gated", gated, "isa"_a, "gate"_a, "up"_a, "into"_a = "out", "gelu"_a = false,
                "silu(gate) * up or gelu(gate) * up, written to an array of its own or over gate or up.");
    kernels.def("soft_cap", soft_cap, "isa"_a, "x"_a, "cap"_a, "cap * tanh(x / cap).");
    kernels.def("store", store, "isa"_a, "values"_a, "position"_a, "block"_a, "is_key"_a,
                "The f16 block (as uint16) with one position of keys or values written.");
    kernels.def("attend", attend, "isa"_a, "q"_a, "k_blocks"_a, "v_blocks"_a, "limits"_a, "firsts"_a = nb::none(),
                "cap"_a = 0.0f, "Online softmax attention of q [rows, head_dim] over KV blocks: (max, sum, acc).");
    kernels.def("store_q8_0", store_q8_0, "isa"_a, "values"_a, "is_key"_a,
                "Keys or values [positions, head_dim] as the bytes of a q8_0 block's half.");
    kernels.def("attend_q8_0", attend_q8_0, "isa"_a, "q"_a, "k_blocks"_a, "v_blocks"_a, "limits"_a,
                "firsts"_a = nb::none(), "cap"_a = 0.0f,
                "As attend, over the halves of q8_0 blocks [blocks, 34 * head_dim].");
}

}  // namespace treadle::bindings
