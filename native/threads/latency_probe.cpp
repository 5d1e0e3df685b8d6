#include "treadle/latency_probe.h"

#include <algorithm>
#include <chrono>

namespace treadle {

namespace {

constexpr uint64_t kLineBytes = 64;
// A linear congruential generator modulo a power of two visits every line once before it repeats itself if the factor
// is one more than a multiple of four and the summand odd (Hull and Dobell 1962). Lines that follow each other lie far
// apart, in no order that a prefetcher knows, and writing them takes one pass over the memory.
constexpr uint64_t kFactor = 1664525, kSummand = 1013904223;
constexpr int kLoadsPerClock = 256;
constexpr double kWarmShare = 0.25;  // of the time, before it counts

struct Line {
    const Line* next;
    uint64_t padding[7];
};
static_assert(sizeof(Line) == kLineBytes);

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void link(Line* lines, uint64_t num_lines) {
    for (uint64_t i = 0; i < num_lines; ++i) lines[i].next = lines + ((kFactor * i + kSummand) & (num_lines - 1));
}

// Follows the circle from `line` for so long; returns where it stopped and adds to the loads.
const Line* follow(const Line* line, double seconds, uint64_t* num_loads) {
    const double end = seconds_now() + seconds;
    do {
        for (int i = 0; i < kLoadsPerClock; ++i) line = line->next;
        // The reads must not be optimised away.
        asm volatile("" : "+r"(line));
        *num_loads += kLoadsPerClock;
    } while (seconds_now() < end);
    return line;
}

}  // namespace

LatencyProbe::LatencyProbe(ThreadPool& pool, uint8_t* memory, size_t num_bytes)
    : pool_(pool), memory_(memory), num_bytes_(num_bytes) {}

double LatencyProbe::seconds_per_load(size_t num_bytes, double seconds) {
    double found = 0;
    pool_.run([&](int worker) {
        if (worker != 0) return;
        auto* lines = reinterpret_cast<Line*>(memory_);
        const uint64_t num_lines = std::min(num_bytes, num_bytes_) / kLineBytes;
        if (linked_bytes_ != num_bytes) link(lines, num_lines);
        linked_bytes_ = num_bytes;
        uint64_t num_loads = 0;
        const Line* line = follow(lines, seconds * kWarmShare, &num_loads);
        num_loads = 0;
        const double start = seconds_now();
        line = follow(line, seconds, &num_loads);
        found = (seconds_now() - start) / static_cast<double>(num_loads);
    });
    return found;
}

}  // namespace treadle
