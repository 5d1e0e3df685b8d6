// Finds out whether a CPU is free without making anybody wait for it.
//
// A thread of its own spins there for some milliseconds and adds up what it missed: that is what another program, or
// the host of a virtual machine, had of the CPU. Several time slices of the system fit in, so a busy CPU shows.
#pragma once

#include <atomic>
#include <thread>

namespace treadle {

class CoreProof {
 public:
    // Starts at once, on this CPU, or anywhere if it is -1.
    explicit CoreProof(int cpu);
    ~CoreProof();
    CoreProof(const CoreProof&) = delete;
    CoreProof& operator=(const CoreProof&) = delete;

    bool is_done() const { return state_.load(std::memory_order_acquire) != State::kRunning; }
    bool found_free() const { return state_.load(std::memory_order_acquire) == State::kFree; }

 private:
    enum class State { kRunning, kFree, kBusy };

    void spin(int cpu);

    std::atomic<State> state_{State::kRunning};
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace treadle
