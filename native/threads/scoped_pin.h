// Pins the calling thread to a CPU while it lives. One that is offline or outside the cpuset leaves it unpinned.
#pragma once

#ifdef __linux__
#include <sched.h>
#endif

namespace treadle {

#ifdef __linux__
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

}  // namespace treadle
