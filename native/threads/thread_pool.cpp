#include "treadle/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "attendance.h"
#include "core_proof.h"
#include "scoped_pin.h"
#include "treadle/errors.h"

namespace treadle {
namespace {

using Clock = ThreadPool::Clock;

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

// Returns once `value` is no longer `old`: spins first, then sleeps on the futex behind std::atomic::wait. Returns how
// long it slept and spun if it had to sleep, else zero.
Clock::duration wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, Clock::duration spin) {
    const Clock::time_point start = Clock::now();
    do {
        for (int i = 0; i < kPausesPerClockRead; ++i) {
            if (value.load(std::memory_order_acquire) != old) return {};
            pause_cpu();
        }
    } while (Clock::now() - start < spin);
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
    return Clock::now() - start;
}

}  // namespace

ThreadPool::ThreadPool(std::vector<int> cpus) { set_cpus(std::move(cpus)); }

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::set_cpus(std::vector<int> cpus) {
    if (cpus.empty()) throw UsageError("a thread pool needs at least one worker, got an empty CPU list");
    stop_workers();
    proofs_.clear();
    cpus_ = std::move(cpus);
    records_ = std::make_unique<Record[]>(cpus_.size());
    attendance_ = std::make_unique<Attendance>(num_threads());
    if (start_workers(num_threads())) return;
    const int num_started = num_present();
    stop_workers();
    throw CapacityError("cannot start " + std::to_string(num_threads()) + " worker threads, the system refused after " +
                        std::to_string(num_started));
}

bool ThreadPool::start_workers(int num_present_then) {
    stopping_ = false;
    const uint32_t generation = run_generation_.load();
    threads_.reserve(cpus_.size());
    while (num_present() < num_present_then) {
        const int worker = num_present();
        for (auto& num_taken : records_[static_cast<size_t>(worker)].num_taken) num_taken = 0;  // it may have been away
        try {
            threads_.emplace_back([this, worker, generation] { work(worker, generation); });
        } catch (const std::system_error&) {
            return false;
        }
    }
    return true;
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
    if (num_present() < num_threads()) readmit(Clock::now());
    const Clock::time_point began = Clock::now();
    {
        const ScopedPin pin(cpus_[0]);
        note_lateness(0, Clock::now() - began);  // where another program runs, this thread has just waited its turn
        body_ = body;
        context_ = context;
        run_generation_.fetch_add(1, std::memory_order_release);
        run_generation_.notify_all();
        body(context, 0);
        barrier(0);
    }
    if (num_threads() > 1 && sits_out_) review(began);
}

void ThreadPool::readmit(Clock::time_point now) {
    const auto absent = cpus_.begin() + num_present();
    if (proofs_.empty()) {
        if (!attendance_->is_time_for_trial(now)) return;
        try {
            for (auto cpu = absent; cpu != cpus_.end(); ++cpu) proofs_.push_back(std::make_unique<CoreProof>(*cpu));
        } catch (const std::system_error&) {  // as many as the system allows
        }
        return;
    }
    const auto is_done = [](const std::unique_ptr<CoreProof>& proof) { return proof->is_done(); };
    if (!std::all_of(proofs_.begin(), proofs_.end(), is_done)) return;
    auto next = absent;  // the free ones come first, for they come back
    for (size_t i = 0; i < proofs_.size(); ++i) {
        if (proofs_[i]->found_free()) std::iter_swap(next++, absent + static_cast<std::ptrdiff_t>(i));
    }
    proofs_.clear();
    if (next == absent) return;
    start_workers(static_cast<int>(next - cpus_.begin()));
    attendance_->open_window();
}

void ThreadPool::review(Clock::time_point began) {
    const Clock::time_point now = Clock::now();
    waited_for_.clear();
    for (int worker = 0; worker < num_present(); ++worker) {
        waited_for_.emplace_back(
            records_[static_cast<size_t>(worker)].made_wait.exchange(0, std::memory_order_relaxed));
    }
    if (const std::optional<int> absent = attendance_->after_run(now, now - began, waited_for_)) {
        const int last = num_present() - 1;  // whose place is given up
        stop_workers();
        proofs_.clear();  // they are about others now
        std::swap(cpus_[static_cast<size_t>(*absent)], cpus_[static_cast<size_t>(last)]);
        start_workers(last);
    }
}

void ThreadPool::barrier(int worker) {
    if (!times_waits_) {
        meet(worker);
        return;
    }
    const Clock::time_point arrived = Clock::now();
    meet(worker);
    records_[static_cast<size_t>(worker)].waited += Clock::now() - arrived;
}

void ThreadPool::meet(int worker) {
    const uint32_t generation = barrier_generation_.load(std::memory_order_acquire);
    // Nobody looks at the next phase's count before everybody has come here.
    records_[static_cast<size_t>(worker)].num_taken[(generation + 1) % 2].store(0, std::memory_order_relaxed);
    if (num_present() == 1) {
        barrier_generation_.store(generation + 1, std::memory_order_relaxed);
        return;
    }
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_present()) {
        last_to_arrive_ = worker;
        num_arrived_.store(0, std::memory_order_relaxed);
        barrier_generation_.store(generation + 1, std::memory_order_release);
        barrier_generation_.notify_all();
    } else if (const Clock::duration waited = wait_for_change(barrier_generation_, generation, kBarrierSpin);
               worker == (last_to_arrive_ == 0 ? 1 : 0)) {  // one of those who waited is enough
        note_lateness(last_to_arrive_, waited);
    }
}

void ThreadPool::note_lateness(int worker, Clock::duration waited) {
    if (waited < kBarrierSpin) return;
    records_[static_cast<size_t>(worker)].made_wait.fetch_add(waited.count(), std::memory_order_relaxed);
}

}  // namespace treadle
