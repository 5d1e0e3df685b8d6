// Micro-benchmark of the kernel tables: how near single kernels come to what this machine allows.
//
//   cmake -B build-bench -DTREADLE_BUILD_PYTHON=OFF -DTREADLE_BUILD_BENCH=ON && cmake --build build-bench
//   build-bench/native/bench/kernel_bench [--isa NAME] [--format NAME] [--tokens N] [--threads N] [--rounds N]
//       [--kib N]
//
// --format takes the name of a weight format or `attend`. Options may be repeated, and each narrows what is measured:
// --format Q4_K --tokens 1 --tokens 8. Without --isa every table but `ref` runs.
//
// Products walk a matrix of 256 MiB, larger than the caches, so one token shows the memory and eight show the
// arithmetic. Attention walks KV blocks of the same total size. Two limits of the machine are measured in the same run:
// reading that memory with nothing to compute, and `vpdpbusd` on registers with nothing to read (processors that have
// it). A shared machine changes from second to second: cases take turns, a few milliseconds each, and the best of all
// rounds counts. Compare figures of one run only.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/gguf.h"
#include "treadle/kernels.h"
#include "treadle/limit_probe.h"
#include "treadle/memory.h"
#include "treadle/thread_pool.h"

namespace {

using namespace treadle;

constexpr int kDefaultKib = 256 << 10;
constexpr int kMinKib = 256;
constexpr int64_t kColumns = 2048;
constexpr double kTurnSeconds = 0.004;
constexpr int kDefaultRounds = 25;

// Something to measure: `run(begin, end)` does items begin .. end-1 and may be called by all threads at once.
struct Case {
    int num_threads;
    int64_t num_items;
    int64_t items_per_claim;
    std::function<void(int64_t, int64_t)> run;
    double best_items_per_second = 0;
    int64_t next_item = 0;  // turns go on where the last one ended, so nothing is left in the cache
};

// What the kernels walk.
struct Memory {
    const uint8_t* data;
    int64_t num_bytes;
};

using Options = std::map<std::string, std::vector<std::string>>;

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void take_turn(ThreadPool& pool, Case& c) {
    std::atomic<int64_t> cursor{c.next_item};
    const double start = seconds_now();
    pool.run([&](int) {
        while (seconds_now() < start + kTurnSeconds) {
            const int64_t begin = cursor.fetch_add(c.items_per_claim) % c.num_items;
            c.run(begin, std::min(begin + c.items_per_claim, c.num_items));
        }
    });
    const double rate = static_cast<double>(cursor - c.next_item) / (seconds_now() - start);
    c.best_items_per_second = std::max(c.best_items_per_second, rate);
    c.next_item = cursor % c.num_items;
}

// Activations of one tile, quantised from a fixed pattern.
struct Tile {
    Tile(const KernelTable& kernels, ActFormat format, int num_tokens)
        : arrays(static_cast<size_t>(num_tokens) * kColumns * 16) {
        uint8_t* piece = arrays.data();
        const auto take = [&](size_t bytes_per_column) {
            uint8_t* taken = piece;
            piece += bytes_per_column * num_tokens * kColumns;
            return taken;
        };
        tile.num_tokens = num_tokens;
        tile.x = reinterpret_cast<float*>(take(4));
        tile.q = reinterpret_cast<int8_t*>(take(1));
        // One entry per 16 columns or fewer: a byte per column is room enough.
        tile.scale = reinterpret_cast<float*>(take(1));
        tile.zero32 = reinterpret_cast<int32_t*>(take(1));
        tile.scaled_sum = reinterpret_cast<float*>(take(1));
        tile.zero16 = reinterpret_cast<int32_t*>(take(1));
        std::vector<float> x(kColumns);
        for (int64_t i = 0; i < kColumns; ++i) x[i] = static_cast<float>(i % 37 - 18);
        for (int t = 0; t < num_tokens; ++t) kernels.quantize[format](x.data(), kColumns, t, &tile);
    }
    std::vector<uint8_t> arrays;
    ActTile tile{};
};

int64_t panel_bytes(uint32_t format) { return kColumns / block_columns(format) * panel_block_bytes(format); }

Case product_case(const KernelTable& kernels, uint32_t format, int num_tokens, int num_threads, const Memory& memory) {
    const MatmulFn matmul = kernels.matmul[format];
    const int64_t bytes = panel_bytes(format);
    auto tile = std::make_shared<Tile>(kernels, act_format_of(format), num_tokens);
    const auto run = [=](int64_t begin, int64_t end) {
        alignas(64) float out[kMaxTile * kPanelRows];
        for (int64_t p = begin; p < end; ++p) matmul(memory.data + p * bytes, kColumns, &tile->tile, out);
    };
    return {num_threads, memory.num_bytes / bytes, 4, run};
}

Case attention_case(const KernelTable& kernels, int head_dim, int num_rows, int num_threads, const Memory& memory) {
    const int64_t half_block = int64_t{head_dim} * kKvBlockTokens;
    auto query = std::make_shared<std::vector<float>>(head_dim * kMaxAttendRows, 0.1f);
    const auto run = [=, &kernels](int64_t begin, int64_t end) {
        static thread_local std::vector<float> acc;
        acc.assign(static_cast<size_t>(kMaxAttendRows) * head_dim, 0.0f);
        float max[kMaxAttendRows] = {}, sum[kMaxAttendRows] = {};
        int32_t limit[kMaxAttendRows];
        std::fill_n(limit, num_rows, static_cast<int32_t>(kKvBlockTokens));
        for (int64_t b = begin; b < end; ++b) {
            const auto* k = reinterpret_cast<const uint16_t*>(memory.data) + 2 * half_block * b;
            const AttendArgs args = {k,   k + half_block, head_dim,          num_rows, query->data(), limit, max,
                                     sum, acc.data(),     k + 2 * half_block};
            kernels.attend_block(&args);
        }
    };
    return {num_threads, memory.num_bytes / (4 * half_block), 8, run};
}

struct Row {
    std::string label;
    double bytes_per_item;
    double ops_per_item_token;  // 0: GB/s alone
    double positions_per_item;  // 0: not attention
    std::vector<int> tokens;    // of each case
    std::vector<Case> cases;
};

void print_row(const Row& row) {
    std::printf("%-22s", row.label.c_str());
    for (size_t i = 0; i < row.cases.size(); ++i) {
        const double rate = row.cases[i].best_items_per_second;
        if (row.positions_per_item > 0) {
            std::printf("  |%2d: %6.1f GB/s %6.1f M/s", row.tokens[i], rate * row.bytes_per_item / 1e9,
                        rate * row.positions_per_item / 1e6);
        } else {
            std::printf("  |%2d: %6.1f GB/s %6.0f GOP/s", row.tokens[i], rate * row.bytes_per_item / 1e9,
                        rate * row.ops_per_item_token * row.tokens[i] / 1e9);
        }
    }
    std::printf("\n");
}

[[noreturn]] void stop(const std::string& message) {
    std::fprintf(stderr, "kernel_bench: %s\n", message.c_str());
    std::exit(1);
}

Options parse(int argc, char** argv) {
    Options options = {{"--isa", {}},     {"--format", {}}, {"--tokens", {}},
                       {"--threads", {}}, {"--rounds", {}}, {"--kib", {}}};
    for (int i = 1; i < argc; i += 2) {
        const auto option = options.find(argv[i]);
        if (option == options.end())
            stop(std::string("unknown option ") + argv[i] + "; the head of the source lists them");
        if (i + 1 == argc) stop(std::string(argv[i]) + " needs a value");
        option->second.push_back(argv[i + 1]);
    }
    return options;
}

std::vector<int> numbers(const std::vector<std::string>& given, std::vector<int> otherwise, int lowest, int highest) {
    if (given.empty()) return otherwise;
    std::vector<int> result;
    for (const std::string& text : given) {
        int value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest) {
            stop(text + " is not a number from " + std::to_string(lowest) + " to " + std::to_string(highest));
        }
        result.push_back(value);
    }
    return result;
}

std::vector<const KernelTable*> chosen_tables(const std::vector<std::string>& given) {
    std::vector<const KernelTable*> tables;
    for (const std::string& name : given) {
        const KernelTable* table = find_kernels(name.c_str());
        if (table == nullptr) stop("no kernel table '" + name + "' runs here");
        tables.push_back(table);
    }
    if (!tables.empty()) return tables;
    for (const char* const* name = runnable_isas(); *name != nullptr; ++name) {
        if (std::strcmp(*name, "ref") != 0) tables.push_back(find_kernels(*name));
    }
    return tables;
}

bool chosen(const std::vector<std::string>& given, const std::string& name) {
    return given.empty() || std::find(given.begin(), given.end(), name) != given.end();
}

std::vector<Row> build_rows(const Options& options, int num_threads, const Memory& memory) {
    const std::vector<std::string>& formats = options.at("--format");
    const std::vector<int> tokens = numbers(options.at("--tokens"), {1, 2, 4, 8}, 1, kMaxTile);
    std::vector<Row> rows;
    for (const KernelTable* table : chosen_tables(options.at("--isa"))) {
        for (uint32_t format = 0; format < kNumWeightFormats; ++format) {
            if (table->matmul[format] == nullptr || !chosen(formats, find_gguf_format(format)->name)) continue;
            Row row = {std::string(table->isa) + " " + find_gguf_format(format)->name,
                       static_cast<double>(panel_bytes(format)),
                       2.0 * static_cast<double>(kPanelRows * kColumns),
                       0,
                       tokens,
                       {}};
            for (const int t : tokens) row.cases.push_back(product_case(*table, format, t, num_threads, memory));
            rows.push_back(std::move(row));
        }
        for (const int head_dim : {64, 128}) {
            if (!chosen(formats, "attend")) continue;
            Row row = {std::string(table->isa) + " attend " + std::to_string(head_dim),
                       4.0 * head_dim * int{kKvBlockTokens},
                       0,
                       kKvBlockTokens,
                       tokens,
                       {}};
            for (const int r : tokens) row.cases.push_back(attention_case(*table, head_dim, r, num_threads, memory));
            rows.push_back(std::move(row));
        }
    }
    return rows;
}

void measure(const Options& options, int num_threads, int num_rounds, const Memory& memory) {
    ThreadPool pool(std::vector<int>(num_threads, -1));
    std::vector<Row> rows = build_rows(options, num_threads, memory);
    LimitProbe probe(pool, *find_kernels(nullptr), memory.data, static_cast<size_t>(memory.num_bytes));
    double read_rate = 0, peak_rate = 0;
    for (int round = 0; round < num_rounds; ++round) {
        read_rate = std::max(read_rate, probe.read_bytes_per_second(kTurnSeconds));
        peak_rate = std::max(peak_rate, probe.int8_ops_per_second(kTurnSeconds));
        for (Row& row : rows) {
            for (Case& c : row.cases) take_turn(pool, c);
        }
    }
    std::printf("%d thread%s: reads %.1f GB/s", num_threads, num_threads == 1 ? "" : "s", read_rate / 1e9);
    if (peak_rate > 0) std::printf(", int8 peak %.0f GOP/s", peak_rate / 1e9);
    std::printf("   (columns: tokens of the tile, or rows of attention)\n");
    for (const Row& row : rows) print_row(row);
    std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const int kib = numbers(options.at("--kib"), {kDefaultKib}, kMinKib, 64 << 20).back();
    const int num_rounds = numbers(options.at("--rounds"), {kDefaultRounds}, 1, 1000).back();
    const PageBuffer pages(size_t{1024} * kib, "the benchmark's matrix");
    // As f16 a small normal number, so every format has plain values.
    std::memset(pages.data(), 0x11, pages.num_bytes());
    for (const int num_threads : numbers(options.at("--threads"), {1, 2}, 1, 256)) {
        measure(options, num_threads, num_rounds, {pages.data(), static_cast<int64_t>(pages.num_bytes())});
    }
    return 0;
}
