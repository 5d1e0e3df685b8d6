// Products with every weight format, and the tiles they read.
#include <algorithm>

#include "comparison.h"

namespace treadle::tests {
namespace {

struct Format {
    WeightFormat id;
    const char* name;
    std::vector<size_t> factors_at;  // offsets of the f16 factors in a block of a GGUF row, of MXFP4 of the exponent
};

const Format kFormats[] = {
    {kF32, "F32", {}},       {kF16, "F16", {}},         {kBF16, "BF16", {}},     {kQ4_0, "Q4_0", {0}},
    {kQ4_1, "Q4_1", {0, 2}}, {kQ5_0, "Q5_0", {0}},      {kQ5_1, "Q5_1", {0, 2}}, {kQ8_0, "Q8_0", {0}},
    {kQ4_K, "Q4_K", {0, 2}}, {kQ5_K, "Q5_K", {0, 2}},   {kQ6_K, "Q6_K", {208}},  {kIQ4_NL, "IQ4_NL", {0}},
    {kMXFP4, "MXFP4", {0}},  {kQ2_K, "Q2_K", {80, 82}}, {kQ3_K, "Q3_K", {108}},  {kIQ4_XS, "IQ4_XS", {0}},
    {kTQ1_0, "TQ1_0", {52}}, {kTQ2_0, "TQ2_0", {64}},
};

struct Tile {
    Guarded<int8_t> q;
    Guarded<float> scale;
    Guarded<int32_t> zero32;
    Guarded<float> scaled_sum;
    Guarded<int32_t> zero16;
    Guarded<float> x;
    ActTile tile;

    Tile(ActFormat format, size_t columns, size_t tokens)
        : q(format == kActQ8 ? columns * tokens : 0),
          scale(format == kActQ8 ? columns / 32 * tokens : 0),
          zero32(format == kActQ8 ? columns / 32 * tokens : 0),
          scaled_sum(format == kActQ8 ? columns / 32 * tokens : 0),
          zero16(format == kActQ8 ? columns / 16 * tokens : 0),
          x(format == kActF32 ? columns * tokens : 0),
          tile{static_cast<int32_t>(tokens),
               q.data(),
               scale.data(),
               zero32.data(),
               scaled_sum.data(),
               zero16.data(),
               x.data()} {}

    // Token t is the t-th row of `values`.
    void fill(const KernelTable& table, ActFormat format, const std::vector<float>& values) {
        const size_t columns = values.size() / static_cast<size_t>(tile.num_tokens);
        for (int32_t t = 0; t < tile.num_tokens; ++t) {
            const Guarded<float> token(columns, values.data() + columns * static_cast<size_t>(t));
            table.quantize[format](token.data(), static_cast<int64_t>(columns), t, &tile);
        }
    }
};

// GGUF rows with random quants and scales. Random f16 factors would often be infinite or NaN, which hides all else.
std::vector<uint8_t> random_rows(Random& random, const Format& format, size_t num_rows, size_t columns) {
    const size_t block_bytes = static_cast<size_t>(row_block_bytes(format.id));
    const size_t num_blocks = num_rows * columns / static_cast<size_t>(block_columns(format.id));
    std::vector<uint8_t> rows(num_blocks * block_bytes);
    for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random.bits());
    for (size_t b = 0; b < num_blocks; ++b) {
        uint8_t* block = rows.data() + b * block_bytes;
        for (const size_t at : format.factors_at) {
            const uint16_t factor = random.small_f16();
            if (format.id == kMXFP4)
                block[at] = static_cast<uint8_t>(118 + random.below(10));
            else
                memcpy(block + at, &factor, 2);
        }
        const float value = random.uniform(-1.0f, 1.0f);
        const uint16_t half = random.small_f16();
        if (format.id == kF32) memcpy(block, &value, 4);
        if (format.id == kBF16) memcpy(block, reinterpret_cast<const char*>(&value) + 2, 2);
        if (format.id == kF16) memcpy(block, &half, 2);
    }
    return rows;
}

// To rows of a tile that has others, too: the sums are those of the plain product.
void compare_added_product(Comparison& c, WeightFormat format, const std::string& what, const Guarded<uint8_t>& panel,
                           const ActTile& tile, const Guarded<float>& sums) {
    const auto tokens = static_cast<size_t>(tile.num_tokens);
    std::vector<int32_t> rows(tokens);
    for (size_t t = 0; t < tokens; ++t) rows[t] = static_cast<int32_t>(kMaxTile - tokens + t);
    std::vector<float> base(kMaxTile * kPanelRows, 0.75f);
    Guarded<float> found(base.size(), base.data()), expected(base.size(), base.data());
    for (size_t i = 0; i < sums.count(); ++i) {
        expected.data()[static_cast<size_t>(rows[0]) * kPanelRows + i] += sums.data()[i];
    }
    const int64_t columns = static_cast<int64_t>(panel.count()) / panel_block_bytes(format);
    c.table.matmul_add[format](panel.data(), columns, &tile, rows.data(), found.data());
    c.expect_same("matmul_add " + what, found, expected);
}

void compare_product(Comparison& c, const Format& format, const std::vector<uint8_t>& rows, size_t num_rows,
                     const std::vector<float>& x, size_t tokens) {
    const size_t columns = x.size() / tokens;
    const ActFormat act_format = act_format_of(format.id);
    Tile tile(act_format, columns, tokens);
    tile.fill(c.ref, act_format, x);
    Guarded<uint8_t> panel(columns / static_cast<size_t>(block_columns(format.id)) *
                           static_cast<size_t>(panel_block_bytes(format.id)));
    const Guarded<uint8_t> guarded_rows(rows.size(), rows.data());
    pack_panel(format.id, guarded_rows.data(), static_cast<int64_t>(rows.size() / num_rows),
               static_cast<int32_t>(num_rows), static_cast<int64_t>(columns), panel.data());
    Guarded<float> found(tokens * kPanelRows), expected(tokens * kPanelRows);
    c.table.matmul[format.id](panel.data(), static_cast<int64_t>(columns), &tile.tile, found.data());
    c.ref.matmul[format.id](panel.data(), static_cast<int64_t>(columns), &tile.tile, expected.data());
    const std::string what = std::string(format.name) + ", " + to_string(columns) + " columns, " + to_string(num_rows) +
                             " rows, " + to_string(tokens) + " tokens";
    c.expect_same("matmul " + what, found, expected);
    if (const UnpackedProduct& product = c.table.unpacked[format.id]; product.matmul) {
        Guarded<uint8_t> unpacked(columns / 32 * static_cast<size_t>(product.block_bytes));
        product.unpack(panel.data(), static_cast<int64_t>(columns), unpacked.data());
        Guarded<float> found_unpacked(tokens * kPanelRows);
        product.matmul(unpacked.data(), static_cast<int64_t>(columns), &tile.tile, found_unpacked.data());
        c.expect_same_again("matmul of unpacked " + what, found_unpacked, expected);
    }
    if (c.table.matmul_add[format.id]) compare_added_product(c, format.id, what, panel, tile.tile, expected);
}

constexpr float kMagnitudes[] = {1e-3f, 0.1f, 1.0f, 10.0f, 1e3f};

void compare_random_products(Comparison& c) {
    for (const Format& format : kFormats) {
        std::vector<size_t> column_counts = {0, 1, 2, 3, 15, 64, 333};
        if (block_columns(format.id) == 32) column_counts = {0, 32, 64, 96, 576};
        if (block_columns(format.id) == 256) column_counts = {0, 256, 512, 1536};
        for (const size_t columns : column_counts) {
            Random random(columns + format.id);
            for (size_t tokens = 1; tokens <= kMaxTile; ++tokens) {
                const size_t num_rows = tokens % 3 == 0 ? 16 : tokens % 3 == 1 ? 15 : 1;
                const std::vector<uint8_t> rows = random_rows(random, format, num_rows, columns);
                const float magnitude = kMagnitudes[random.below(5)];
                const std::vector<float> x = random.values(tokens * columns, magnitude);
                compare_product(c, format, rows, num_rows, x, tokens);
            }
        }
    }
}

// The largest sums of either sign, and activations that are no numbers.
void compare_extreme_products(Comparison& c) {
    const size_t columns = 512;
    for (const Format& format : kFormats) {
        Random random(format.id);
        for (const uint8_t fill : {0x00, 0x7f, 0x80, 0xff}) {
            std::vector<uint8_t> rows = random_rows(random, format, 16, columns);
            const std::vector<uint8_t> factors = rows;
            std::fill(rows.begin(), rows.end(), fill);
            for (size_t block = 0; block < rows.size(); block += static_cast<size_t>(row_block_bytes(format.id))) {
                for (const size_t at : format.factors_at) {
                    memcpy(&rows[block + at], &factors[block + at], format.id == kMXFP4 ? 1 : 2);
                }
            }
            for (size_t tokens = 1; tokens <= kMaxTile; ++tokens) {
                std::vector<float> x(tokens * columns);
                for (size_t i = 0; i < x.size(); ++i) {
                    const float values[] = {1.0f, -1.0f, i % 2 ? 1.0f : -1.0f, i % 2 ? 1e30f : -1e30f, 0.0f};
                    x[i] = values[(i / columns + fill) % 5];
                }
                compare_product(c, format, rows, 16, x, tokens);
                for (size_t t = 0; t < tokens; ++t) x[t * columns + t * 37] = kSpecials[8 + t];
                compare_product(c, format, rows, 16, x, tokens);
            }
        }
    }
}

void compare_tile(Comparison& c, ActFormat format, const std::vector<float>& x, size_t tokens) {
    const size_t columns = x.size() / tokens;
    Tile found(format, columns, tokens), expected(format, columns, tokens);
    found.fill(c.table, format, x);
    expected.fill(c.ref, format, x);
    const std::string what =
        "quantize " + to_string(format) + ", " + to_string(columns) + " columns, " + to_string(tokens) + " tokens, ";
    c.expect_same(what + "q", found.q, expected.q);
    c.expect_same(what + "scale", found.scale, expected.scale);
    c.expect_same(what + "zero32", found.zero32, expected.zero32);
    c.expect_same(what + "scaled_sum", found.scaled_sum, expected.scaled_sum);
    c.expect_same(what + "zero16", found.zero16, expected.zero16);
    c.expect_same(what + "x", found.x, expected.x);
}

}  // namespace

void compare_products(Comparison& c) {
    compare_random_products(c);
    compare_extreme_products(c);
}

void compare_quantize(Comparison& c) {
    Random random(1);
    for (size_t tokens = 1; tokens <= kMaxTile; ++tokens) {
        for (const size_t columns : {0, 1, 7, 32, 96, 576}) {
            for (const float magnitude : {1e-42f, 2e-36f, 1e-3f, 1.0f, 1e36f}) {
                const std::vector<float> x = random.values(tokens * columns, magnitude);
                compare_tile(c, kActF32, x, tokens);
                if (columns % 32 == 0) compare_tile(c, kActQ8, x, tokens);
            }
        }
    }
    // Half-way cases: with a largest value of 127 the inverse is 1.
    std::vector<float> ties(64);
    for (size_t i = 0; i < ties.size(); ++i) ties[i] = static_cast<float>(i) - 32.5f;
    ties[0] = ties[63] = 127.0f;
    compare_tile(c, kActQ8, ties, 1);
    for (const float special : kSpecials) {
        for (size_t at = 0; at < 32; ++at) {
            std::vector<float> x(64);
            x[at] = special;
            compare_tile(c, kActQ8, x, 1);
            x = random.values(64, 1.0f);
            x[at] = special;
            compare_tile(c, kActQ8, x, 1);
        }
    }
}

}  // namespace treadle::tests
