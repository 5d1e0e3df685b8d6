// Decides when a worker whose core is busy with another program should sit out, and when to try it again.
//
// Workers meet at barriers all the time. One that the system stops for a time slice makes all others wait as long, so a
// busy core costs every worker half of its speed. Left out, that core costs its own share of the work and no more. It
// comes back when its core is proven free (core_proof.h), for a trial in earnest would hold up everyone.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

namespace treadle {

class Attendance {
 public:
    using Clock = std::chrono::steady_clock;

    explicit Attendance(int num_workers);

    // To be told after every run, with the time for which others slept at barriers because of each present worker.
    // Returns the worker that should sit out from now on, if any.
    std::optional<int> after_run(Clock::time_point now, Clock::duration run,
                                 const std::vector<Clock::duration>& waited_for);

    // To be asked before a run while some sit out; true when it is time to find out whether their cores are free.
    bool is_time_for_trial(Clock::time_point now);

    // To be told when somebody came back.
    void open_window();

 private:
    size_t num_workers_;
    Clock::duration window_{};                 // run time under review
    std::vector<Clock::duration> waited_for_;  // in the window
    Clock::duration patience_;                 // how long the next one to sit out does so
    Clock::time_point trial_;
};

}  // namespace treadle
