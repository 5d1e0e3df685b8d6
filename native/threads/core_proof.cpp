#include "core_proof.h"

#include <chrono>

#include "scoped_pin.h"

namespace treadle {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr Clock::duration kProof = 15ms;
// Reading the clock again takes less than a microsecond unless something came between.
constexpr Clock::duration kSmallestGap = 50us;
// Clock ticks and interrupts take far less, a program that computes takes half.
constexpr double kMostMissed = 0.15;

}  // namespace

CoreProof::CoreProof(int cpu) : thread_([this, cpu] { spin(cpu); }) {}

CoreProof::~CoreProof() {
    stopping_ = true;
    thread_.join();
}

void CoreProof::spin(int cpu) {
    const ScopedPin pin(cpu);
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start;
    Clock::duration missed{};
    while (last - start < kProof && !stopping_.load(std::memory_order_relaxed)) {
        const Clock::time_point now = Clock::now();
        if (now - last > kSmallestGap) missed += now - last;
        last = now;
    }
    const bool is_free =
        static_cast<double>(missed.count()) < kMostMissed * static_cast<double>((last - start).count());
    state_.store(is_free ? State::kFree : State::kBusy, std::memory_order_release);
}

}  // namespace treadle
