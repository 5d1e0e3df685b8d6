// Where the time of a step goes: per operator and worker, and how much of it was waiting for other workers.
//
// Off, a lap is one branch and no clock is read. On, each worker writes to a record of its own.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "treadle/model.h"
#include "treadle/runtime.h"
#include "treadle/thread_pool.h"

namespace treadle {

enum class Operator : uint8_t {
    kStart,  // until the worker's body begins: checks, the list of attention's work, waking
    kEmbed,
    kNormQuantise,
    kAdapt,  // A of adapters
    kQkv,
    kRotateStore,
    kAttention,
    kConvolutionIn,
    kConvolve,
    kAttentionOutput,
    kRoute,  // tokens to experts
    kGateUp,
    kDown,
    kAddExperts,
    kKeepRows,
    kAddStates,
    kLogits,
    kSample,
    kCount
};

// What an operator has to do in one layer, over all workers.
struct Work {
    uint64_t bytes = 0;       // weights or KV blocks it reads
    uint64_t operations = 0;  // multiplications and additions
};

inline Work product_work(std::initializer_list<const Matrix*> matrices, int64_t num_tokens) {
    Work work;
    for (const Matrix* matrix : matrices) {
        work.bytes += matrix->num_bytes();
        work.operations += static_cast<uint64_t>(2 * matrix->rows * matrix->columns * num_tokens);
    }
    return work;
}

class StepTimers {
 public:
    explicit StepTimers(ThreadPool& pool) : pool_(pool) {}

    // Starts from zero, or stops. Not during a step.
    void set_on(bool on);
    bool is_on() const { return !workers_.empty(); }

    // Around a step, on the calling thread.
    void begin_step();
    void end_step();

    // Gives the time since the worker's last lap to `name`. work() counts what all workers did in it together; it is
    // asked once.
    template <typename CountWork>
    void lap(int worker, Operator name, CountWork&& work) {
        if (is_on()) record(worker, name, worker == 0 ? work() : Work{});
    }
    void lap(int worker, Operator name) {
        if (is_on()) record(worker, name, {});
    }

    // All zero, and no operators, while off.
    StepTimings read() const;

 private:
    using Clock = std::chrono::steady_clock;

    struct Entry {
        int64_t num_calls = 0;
        Clock::duration total{}, waited{};
        uint64_t bytes = 0, operations = 0;
    };
    struct alignas(64) Worker {
        Clock::time_point last;
        Clock::duration waited{};  // at barriers since the timers were switched on, as of the last lap
        std::array<Entry, static_cast<size_t>(Operator::kCount)> entries;
    };

    void record(int worker, Operator name, Work work);

    ThreadPool& pool_;
    std::vector<Worker> workers_;  // empty while off
    Clock::time_point step_began_;
    Clock::duration steps_total_{};
    int64_t num_steps_ = 0;
};

}  // namespace treadle
