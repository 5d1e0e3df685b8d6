#include "treadle/limit_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace treadle {

namespace {

constexpr int64_t kLineBytes = 64;
// In small pieces the threads keep starting anew, and prefetch what the other one reads: that is far from the limit.
constexpr int64_t kMaxPieceBytes = int64_t{2} << 20;
constexpr int64_t kPrefetchWords = 1024;
constexpr double kClaimSeconds = 5e-6;
constexpr int kUsedOnce = 0;  // the data is not needed again: leave no trace of it in the caches

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Window {
    double num_claims;
    double seconds;
};

// Every thread claims pieces of work until the time is over.
template <typename Work>
Window run_window(ThreadPool& pool, double seconds, const Work& work) {
    std::atomic<int64_t> cursor{0};
    const double start = seconds_now();
    pool.run([&](int) {
        while (seconds_now() < start + seconds) work(cursor.fetch_add(1, std::memory_order_relaxed));
    });
    return {static_cast<double>(cursor.load()), seconds_now() - start};
}

void read_piece(const uint8_t* piece, int64_t num_bytes) {
    uint64_t sum[8] = {};
    const auto* words = reinterpret_cast<const uint64_t*>(piece);
    for (int64_t i = 0; i < num_bytes / 8; i += 8) {
        __builtin_prefetch(words + i + kPrefetchWords, 0, kUsedOnce);
        for (int lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
    }
    // The reads must not be optimised away.
    for (const uint64_t s : sum) asm volatile("" : : "r"(s));
}

// How many rounds of `peak` take at least kClaimSeconds, so that claims and clocks cost next to nothing.
int64_t rounds_of_claim(PeakFn peak) {
    for (int64_t num_rounds = 1;; num_rounds *= 2) {
        const double start = seconds_now();
        peak(num_rounds);
        if (seconds_now() - start >= kClaimSeconds) return num_rounds;
    }
}

}  // namespace

LimitProbe::LimitProbe(ThreadPool& pool, const KernelTable& kernels, const uint8_t* memory, size_t num_bytes)
    : pool_(pool),
      kernels_(kernels),
      memory_(memory),
      piece_bytes_(std::min(static_cast<int64_t>(num_bytes), kMaxPieceBytes) / kLineBytes * kLineBytes),
      num_pieces_(static_cast<int64_t>(num_bytes) / piece_bytes_) {}

double LimitProbe::read_bytes_per_second(double seconds) {
    const Window window = run_window(pool_, seconds, [&](int64_t claim) {
        read_piece(memory_ + (next_piece_ + claim) % num_pieces_ * piece_bytes_, piece_bytes_);
    });
    next_piece_ = (next_piece_ + static_cast<int64_t>(window.num_claims)) % num_pieces_;
    return window.num_claims * static_cast<double>(piece_bytes_) / window.seconds;
}

double LimitProbe::int8_ops_per_second(double seconds) { return ops_per_second(kernels_.peak_int8, seconds); }

double LimitProbe::float_ops_per_second(double seconds) { return ops_per_second(kernels_.peak_f32, seconds); }

double LimitProbe::ops_per_second(PeakFn peak, double seconds) {
    const int64_t num_rounds = rounds_of_claim(peak);
    const Window window = run_window(pool_, seconds, [&](int64_t) { peak(num_rounds); });
    return window.num_claims * static_cast<double>(num_rounds * kPeakOps) / window.seconds;
}

}  // namespace treadle
