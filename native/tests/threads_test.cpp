// Worker threads: who sits out when, and that no work is lost or done twice meanwhile.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "threads/attendance.h"
#include "threads/core_proof.h"
#include "treadle/thread_pool.h"

namespace {

using namespace std::chrono_literals;
using treadle::Attendance;
using treadle::CoreProof;
using treadle::ThreadPool;
using Clock = Attendance::Clock;

void expect(bool holds, const char* what) {
    if (holds) return;
    printf("threads_test: %s does not hold\n", what);
    exit(1);
}
#define EXPECT(condition) expect(condition, #condition)

// How long to wait for what must come: only what hangs may take longer, however busy the machine is.
constexpr Clock::duration kPatience = 600s;

// Runs of 10 ms in which the others waited for each worker that many ms; until one sits out, or `time` is over.
std::optional<int> simulate(Attendance& attendance, Clock::time_point& now, Clock::duration time,
                            std::vector<Clock::duration> waited_for) {
    for (Clock::duration passed{}; passed < time; passed += 10ms) {
        now += 10ms;
        if (const auto worker = attendance.after_run(now, 10ms, waited_for)) return worker;
    }
    return std::nullopt;
}

void test_late_worker_sits_out() {
    Attendance attendance(4);
    Clock::time_point now;
    EXPECT(!simulate(attendance, now, 10s, {0ms, 1ms, 0ms, 1ms}));
    EXPECT(!simulate(attendance, now, 50ms, {0ms, 0ms, 1ms, 0ms}));
    EXPECT(!simulate(attendance, now, 10ms, {0ms, 0ms, 6ms, 0ms}));
    EXPECT(simulate(attendance, now, 10ms, {0ms, 0ms, 6ms, 0ms}) == 2);  // 12 ms of a window of 50 are too many already
    EXPECT(simulate(attendance, now, 50ms, {4ms, 1ms, 0ms}) == 0);
}

void test_the_last_worker_stays() {
    Attendance attendance(2);
    Clock::time_point now;
    EXPECT(simulate(attendance, now, 1s, {6ms, 0ms}) == 0);
    EXPECT(!simulate(attendance, now, 1s, {10ms}));
}

void test_trials_grow_rare() {
    Attendance attendance(2);
    Clock::time_point now;
    EXPECT(!simulate(attendance, now, 1s, {0ms, 0ms}));
    for (const Clock::duration patience : {500ms, 1000ms, 1500ms, 1500ms}) {
        EXPECT(simulate(attendance, now, 50ms, {0ms, 6ms}) == 1);
        EXPECT(!attendance.is_time_for_trial(now + patience - 1ms));
        now += patience;
        EXPECT(attendance.is_time_for_trial(now));
    }
    EXPECT(!simulate(attendance, now, 50ms, {0ms, 0ms}));
    EXPECT(simulate(attendance, now, 50ms, {0ms, 6ms}) == 1);
    EXPECT(attendance.is_time_for_trial(now + 500ms));
}

// One run that shares 1000 items; worker 1, if present, arrives late at the barrier after them.
void run_once(ThreadPool& pool, Clock::duration lateness) {
    std::vector<int> done(1000, 0);
    pool.run([&](int worker) {
        pool.share(worker, 1000, 7, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)];
        });
        const Clock::time_point until = Clock::now() + (worker == 1 ? lateness : Clock::duration{});
        while (Clock::now() < until) {
        }
        pool.barrier(worker);
    });
    for (const int count : done) EXPECT(count == 1);
}

// Phases of no, fewer and more chunks than there are workers, and of a last chunk that is not whole, in one run.
void test_every_item_is_shared_once() {
    for (const int num_workers : {1, 2, 3, 5}) {
        ThreadPool pool(std::vector<int>(static_cast<size_t>(num_workers), -1));
        pool.set_sitting_out(false);
        std::vector<std::vector<int>> done;
        for (int64_t num_items = 0; num_items < 40; ++num_items) done.emplace_back(num_items, 0);
        for (int run = 0; run < 3; ++run) {
            pool.run([&](int worker) {
                for (auto& phase : done) {
                    const auto num_items = static_cast<int64_t>(phase.size());
                    pool.share(worker, num_items, 1 + num_items % 4, [&](int64_t begin, int64_t end) {
                        EXPECT(begin < end && end - begin <= 1 + num_items % 4);
                        for (int64_t i = begin; i < end; ++i) ++phase[static_cast<size_t>(i)];
                    });
                }
            });
            for (const auto& phase : done) {
                for (const int count : phase) EXPECT(count == run + 1);
            }
        }
    }
}

// Whoever is first done with its own run takes over what a slow worker has not begun.
void test_others_take_over_from_a_slow_worker() {
    ThreadPool pool({-1, -1});
    pool.set_sitting_out(false);
    std::atomic<int> num_left = 100;
    int num_done_by_slow = 0;
    pool.run([&](int worker) {
        pool.share(worker, 100, 1, [&](int64_t, int64_t) {
            --num_left;
            if (worker == 0) ++num_done_by_slow;
            while (worker == 0 && num_left > 0) std::this_thread::yield();
        });
    });
    EXPECT(num_done_by_slow <= 1);
}

bool is_free() {
    CoreProof proof(-1);
    while (!proof.is_done()) std::this_thread::yield();
    return proof.found_free();
}

void test_pool_goes_on_without_a_late_worker_and_takes_it_back() {
    ThreadPool pool({-1, -1});
    Clock::time_point deadline = Clock::now() + kPatience;
    while (pool.num_present() == 2 && Clock::now() < deadline) run_once(pool, 3ms);
    EXPECT(pool.num_present() == 1);
    EXPECT(pool.num_threads() == 2);
    // Other programs may come and go: a CPU that is free at the end of one wait alone proves nothing.
    bool is_wanted = true;
    for (int wait = 0; wait < 6 && is_wanted; ++wait) {
        deadline = Clock::now() + 10s;
        while (pool.num_present() < 2 && Clock::now() < deadline) run_once(pool, 0ms);
        is_wanted = pool.num_present() < 2 && is_free();
    }
    EXPECT(!is_wanted);  // or it would have come back
    if (pool.num_present() < 2) {
        puts("threads_test: NOT tested that a worker comes back: other programs keep the CPUs busy");
    }
}

void test_nobody_sits_out_where_that_is_off() {
    ThreadPool pool({-1, -1});
    pool.set_sitting_out(false);
    const Clock::time_point until = Clock::now() + 200ms;
    while (Clock::now() < until) run_once(pool, 3ms);
    EXPECT(pool.num_present() == 2);
}

void test_a_pool_may_end_while_it_looks_for_a_free_cpu() {
    ThreadPool pool({-1, -1});
    const Clock::time_point deadline = Clock::now() + kPatience;
    while (pool.num_present() == 2 && Clock::now() < deadline) run_once(pool, 3ms);
    const Clock::time_point until = Clock::now() + 510ms;
    while (Clock::now() < until) run_once(pool, 0ms);
}

void test_workers_can_be_replaced() {
    ThreadPool pool({-1, -1});
    run_once(pool, 0ms);
    for (const int count : {1, 4, 2}) {
        pool.set_cpus(std::vector<int>(static_cast<size_t>(count), -1));
        EXPECT(pool.num_threads() == count);
        EXPECT(pool.num_present() == count);
        for (int i = 0; i < 100; ++i) run_once(pool, 0ms);
    }
}

}  // namespace

int main() {
    test_late_worker_sits_out();
    test_the_last_worker_stays();
    test_trials_grow_rare();
    test_pool_goes_on_without_a_late_worker_and_takes_it_back();
    test_nobody_sits_out_where_that_is_off();
    test_a_pool_may_end_while_it_looks_for_a_free_cpu();
    test_workers_can_be_replaced();
    test_every_item_is_shared_once();
    test_others_take_over_from_a_slow_worker();
    puts("threads_test: passed");
}
