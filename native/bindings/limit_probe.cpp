// LimitProbe: the limits of the machine, measured for benchmarks.
#include "treadle/limit_probe.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "module.h"
#include "treadle/errors.h"
#include "treadle/memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace treadle::bindings {

namespace {

constexpr size_t kMinBytes = size_t{1} << 20;
constexpr int64_t kWrittenAtOnce = int64_t{2} << 20;
constexpr int kMaxWindows = 1000;
constexpr double kMaxSeconds = 10;

// The probe with threads and memory of its own.
class OwnedProbe {
 public:
    OwnedProbe(std::vector<int> cpus, size_t num_bytes)
        : pool_(std::move(cpus)),
          memory_(num_bytes, "measuring the read bandwidth"),
          probe_(pool_, memory_.data(), num_bytes) {
        // By all threads, so that it is soon done and the pages lie near those that read them.
        pool_.run([&](int worker) {
            pool_.share(worker, static_cast<int64_t>(num_bytes), kWrittenAtOnce,
                        [&](int64_t begin, int64_t end) { std::memset(memory_.data() + begin, 1, end - begin); });
        });
    }

    std::pair<double, double> measure(int windows, double seconds) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::pair<double, double> best;
        for (int i = 0; i < windows; ++i) {
            best.first = std::max(best.first, probe_.read_bytes_per_second(seconds));
            best.second = std::max(best.second, probe_.int8_ops_per_second(seconds));
        }
        return best;
    }

 private:
    std::mutex mutex_;  // the pool runs one body at a time
    ThreadPool pool_;
    PageBuffer memory_;
    LimitProbe probe_;
};

}  // namespace

void bind_limit_probe(nb::module_& m) {
    nb::class_<OwnedProbe>(m, "LimitProbe", "Measures what the machine gives at this moment, all threads together.")
        .def(
            "__init__",
            [](OwnedProbe* self, std::vector<int> cpus, size_t num_bytes) {
                if (cpus.empty()) throw UsageError("cpus must name one CPU per thread, or -1");
                if (num_bytes < kMinBytes) throw UsageError("num_bytes must be at least 1 MiB");
                nb::gil_scoped_release unlocked;
                new (self) OwnedProbe(std::move(cpus), num_bytes);
            },
            "cpus"_a, "num_bytes"_a, "Allocates the memory to read: `num_bytes`, more than every cache together.")
        .def(
            "measure",
            [](OwnedProbe& self, int windows, double seconds) {
                if (windows < 1 || windows > kMaxWindows) throw UsageError("windows must be 1 to 1000");
                if (!(seconds > 0 && seconds <= kMaxSeconds)) throw UsageError("seconds must be above 0, at most 10");
                nb::gil_scoped_release unlocked;
                return self.measure(windows, seconds);
            },
            "windows"_a, "seconds"_a,
            "Bytes read from memory per second, and int8 multiplications and additions per second in registers (0 "
            "without AVX512-VNNI): each the best of so many windows of so many seconds, which take turns.");
}

}  // namespace treadle::bindings
