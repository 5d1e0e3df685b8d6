#include "attendance.h"

#include <algorithm>

namespace treadle {
namespace {

using namespace std::chrono_literals;

// Several time slices of the system, so that a window sees a disturbed worker both run and stand.
constexpr Attendance::Clock::duration kWindow = 50ms;
// Finding out costs nobody anything, a worker that comes back too early a window. Soon at first, because most
// disturbances pass, and never late.
constexpr Attendance::Clock::duration kShortestPatience = 500ms;
constexpr Attendance::Clock::duration kLongestPatience = 1500ms;
// n workers that wait for one of them a share w of the time get 1 - w of their work done. n - 1 get (n - 1) / n done,
// and more where memory is the limit, so somewhat below w = 1 / n they overtake. In parts of 1 / n:
constexpr double kMostWaiting = 0.7;

}  // namespace

Attendance::Attendance(int num_workers)
    : num_workers_(static_cast<size_t>(num_workers)), patience_(kShortestPatience) {}

std::optional<int> Attendance::after_run(Clock::time_point now, Clock::duration run,
                                         const std::vector<Clock::duration>& waited_for) {
    const size_t num_present = waited_for.size();
    waited_for_.resize(num_present);
    for (size_t worker = 0; worker < num_present; ++worker) waited_for_[worker] += waited_for[worker];
    window_ += run;
    const auto latest = std::max_element(waited_for_.begin(), waited_for_.end());
    const auto worker = static_cast<int>(latest - waited_for_.begin());
    // Beyond this the rest of the window would change nothing.
    const double most = kMostWaiting * static_cast<double>(std::max(window_, kWindow).count());
    const bool sits_out =
        num_present > 1 && static_cast<double>(num_present) * static_cast<double>(latest->count()) > most;
    if (window_ < kWindow && !sits_out) return std::nullopt;
    open_window();
    if (num_present == num_workers_) {
        trial_ = now + patience_;
        patience_ = sits_out ? std::min(2 * patience_, kLongestPatience) : kShortestPatience;
    }
    return sits_out ? std::optional<int>(worker) : std::nullopt;
}

bool Attendance::is_time_for_trial(Clock::time_point now) {
    if (now < trial_) return false;
    trial_ = now + patience_;
    open_window();
    return true;
}

void Attendance::open_window() {
    window_ = {};
    waited_for_.clear();
}

}  // namespace treadle
