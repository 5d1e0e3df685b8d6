#include "treadle/thread_pool.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>

#include "treadle/errors.h"

namespace treadle {
namespace {

using Clock = std::chrono::steady_clock;

// Between phases: longer than a barrier between cores that both run, shorter than the scheduler slice that a
// descheduled neighbour would make us burn.
constexpr auto kBarrierSpin = std::chrono::microseconds(100);
// Between steps: longer than what the Python side does between two decode steps.
constexpr auto kRunSpin = std::chrono::microseconds(500);
constexpr int kPausesPerClockRead = 32;

void pause_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns once `value` is no longer `old`: spins first, then sleeps on the futex behind std::atomic::wait.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, Clock::duration spin) {
    const Clock::time_point start = Clock::now();
    do {
        for (int i = 0; i < kPausesPerClockRead; ++i) {
            if (value.load(std::memory_order_acquire) != old) return;
            pause_cpu();
        }
    } while (Clock::now() - start < spin);
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

#ifdef __linux__
// Pins the calling thread while it lives. A CPU that is offline or outside the cpuset leaves the thread unpinned.
class ScopedPin {
 public:
    explicit ScopedPin(int cpu) {
        if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET(cpu, &only);
        pinned_ = sched_setaffinity(0, sizeof(only), &only) == 0;
    }
    ~ScopedPin() {
        if (pinned_) sched_setaffinity(0, sizeof(before_), &before_);
    }
    ScopedPin(const ScopedPin&) = delete;
    ScopedPin& operator=(const ScopedPin&) = delete;

 private:
    cpu_set_t before_;
    bool pinned_ = false;
};
#else
// Pinning is not offered by this platform; the scheduler places the threads.
class ScopedPin {
 public:
    explicit ScopedPin(int) {}
};
#endif

}  // namespace

ThreadPool::ThreadPool(std::vector<int> cpus) : cpus_(std::move(cpus)) { start_workers(); }

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::set_cpus(std::vector<int> cpus) {
    if (cpus.empty()) throw UsageError("a thread pool needs at least one worker, got an empty CPU list");
    stop_workers();
    cpus_ = std::move(cpus);
    start_workers();
}

void ThreadPool::start_workers() {
    if (cpus_.empty()) throw UsageError("a thread pool needs at least one worker, got an empty CPU list");
    stopping_ = false;
    const uint32_t generation = run_generation_.load();
    for (int worker = 1; worker < num_threads(); ++worker) {
        threads_.emplace_back([this, worker, generation] { work(worker, generation); });
    }
}

void ThreadPool::stop_workers() {
    stopping_ = true;
    run_generation_.fetch_add(1, std::memory_order_release);
    run_generation_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void ThreadPool::work(int worker, uint32_t seen_generation) {
    const ScopedPin pin(cpus_[static_cast<size_t>(worker)]);
    for (;;) {
        wait_for_change(run_generation_, seen_generation, kRunSpin);
        seen_generation = run_generation_.load(std::memory_order_acquire);
        if (stopping_) return;
        body_(context_, worker);
        barrier(worker);
    }
}

void ThreadPool::run_erased(Erased body, void* context) {
    const ScopedPin pin(cpus_[0]);
    body_ = body;
    context_ = context;
    next_item_.store(0, std::memory_order_relaxed);
    run_generation_.fetch_add(1, std::memory_order_release);
    run_generation_.notify_all();
    body(context, 0);
    barrier(0);
}

void ThreadPool::time_waits(bool on) {
    waits_.clear();
    if (on) waits_.resize(cpus_.size());
}

void ThreadPool::barrier(int worker) {
    if (waits_.empty()) {
        meet();
        return;
    }
    const Clock::time_point arrived = Clock::now();
    meet();
    waits_[static_cast<size_t>(worker)].total += Clock::now() - arrived;
}

void ThreadPool::meet() {
    if (num_threads() == 1) {
        next_item_.store(0, std::memory_order_relaxed);
        return;
    }
    const uint32_t generation = barrier_generation_.load(std::memory_order_acquire);
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads()) {
        num_arrived_.store(0, std::memory_order_relaxed);
        next_item_.store(0, std::memory_order_relaxed);
        barrier_generation_.store(generation + 1, std::memory_order_release);
        barrier_generation_.notify_all();
    } else {
        wait_for_change(barrier_generation_, generation, kBarrierSpin);
    }
}

}  // namespace treadle
