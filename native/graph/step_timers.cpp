#include "step_timers.h"

namespace treadle {
namespace {

constexpr const char* kNames[] = {"start",        "embed",     "norm_quantise",  "adapt",       "qkv",
                                  "rotate_store", "attention", "convolution_in", "convolve",    "attention_output",
                                  "route",        "gate_up",   "down",           "add_experts", "keep_rows",
                                  "add_states",   "logits",    "sample"};
static_assert(std::size(kNames) == static_cast<size_t>(Operator::kCount));

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void StepTimers::set_on(bool on) {
    workers_.clear();
    if (on) workers_.resize(static_cast<size_t>(pool_.num_threads()));
    steps_total_ = {};
    num_steps_ = 0;
    pool_.time_waits(on);
}

void StepTimers::begin_step() {
    if (!is_on()) return;
    step_began_ = Clock::now();
    for (Worker& worker : workers_) worker.last = step_began_;
}

void StepTimers::end_step() {
    if (!is_on()) return;
    steps_total_ += Clock::now() - step_began_;
    ++num_steps_;
}

void StepTimers::record(int worker, Operator name, Work work) {
    Worker& own = workers_[static_cast<size_t>(worker)];
    Entry& entry = own.entries[static_cast<size_t>(name)];
    const Clock::time_point now = Clock::now();
    const Clock::duration waited = pool_.waited(worker);
    if (name == Operator::kStart) own.waited = waited;  // what came before belongs to the end of the previous step
    ++entry.num_calls;
    entry.total += now - own.last;
    entry.waited += waited - own.waited;
    own.last = now;
    own.waited = waited;
    entry.bytes += work.bytes;
    entry.operations += work.operations;
}

StepTimings StepTimers::read() const {
    StepTimings timings;
    timings.num_steps = num_steps_;
    timings.seconds = seconds(steps_total_);
    for (size_t i = 0; is_on() && i < std::size(kNames); ++i) {
        const Entry& first = workers_[0].entries[i];
        OperatorTiming timing{kNames[i], first.num_calls, first.bytes, first.operations, {}, {}};
        for (const Worker& worker : workers_) {
            const Entry& entry = worker.entries[i];
            timing.busy_seconds.push_back(seconds(entry.total - entry.waited));
            timing.wait_seconds.push_back(seconds(entry.waited));
        }
        timings.operators.push_back(std::move(timing));
    }
    return timings;
}

}  // namespace treadle
