#include "treadle/limit_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle {

namespace {

constexpr int64_t kLineBytes = 64;
// In small pieces the threads keep starting anew, and prefetch what the other one reads: that is far from the limit.
constexpr int64_t kMaxPieceBytes = int64_t{2} << 20;
constexpr int64_t kPrefetchWords = 1024;
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

#if defined(__x86_64__)
constexpr int64_t kDotsPerClaim = 4096;
constexpr double kOpsPerDot = 16.0 * 128;

// One is 16 independent vpdpbusd of 64 multiplications and 64 additions each: enough to hide their latency.
__attribute__((target("avx512f,avx512vnni"))) void dot_in_registers(int64_t num_dots) {
    __m512i acc[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) acc[i] = _mm512_set1_epi32(i);
    const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
    for (int64_t n = 0; n < num_dots; ++n) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) {
            acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
            asm volatile("" : "+v"(acc[i]));
        }
    }
}
#endif

}  // namespace

LimitProbe::LimitProbe(ThreadPool& pool, const uint8_t* memory, size_t num_bytes)
    : pool_(pool),
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

double LimitProbe::int8_ops_per_second(double seconds) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni")) {
        const Window window = run_window(pool_, seconds, [](int64_t) { dot_in_registers(kDotsPerClaim); });
        return window.num_claims * static_cast<double>(kDotsPerClaim) * kOpsPerDot / window.seconds;
    }
#endif
    static_cast<void>(seconds);
    return 0;
}

}  // namespace treadle
