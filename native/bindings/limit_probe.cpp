// LimitProbe and LatencyProbe: the limits of the machine.
#include "treadle/limit_probe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "module.h"
#include "treadle/errors.h"
#include "treadle/latency_probe.h"
#include "treadle/memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace treadle::bindings {

namespace {

constexpr size_t kMinBytes = size_t{1} << 20;
constexpr int64_t kWrittenAtOnce = int64_t{1} << 20;  // by each thread
constexpr size_t kMinLatencyBytes = 4096;
constexpr int kMaxWindows = 1000;
constexpr double kMaxSeconds = 10;

using Rates = std::tuple<double, double, double>;

// The probe with threads and memory of its own.
class OwnedProbe {
 public:
    OwnedProbe(std::vector<int> cpus, size_t num_bytes, const KernelTable& kernels)
        : isa_(kernels.isa),
          pool_(std::move(cpus)),
          memory_(num_bytes, "measuring the read bandwidth"),
          probe_(pool_, kernels, memory_.data(), num_bytes) {}

    bool fill() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return fill_next();
    }

    Rates measure(int windows, double seconds) {
        const std::lock_guard<std::mutex> lock(mutex_);
        while (fill_next()) continue;
        double read = 0, int8 = 0, floats = 0;
        for (int i = 0; i < windows; ++i) {
            read = std::max(read, probe_.read_bytes_per_second(seconds));
            int8 = std::max(int8, probe_.int8_ops_per_second(seconds));
            floats = std::max(floats, probe_.float_ops_per_second(seconds));
        }
        return {read, int8, floats};
    }

    const char* isa() const { return isa_; }

 private:
    // By all threads, so that it is soon done and the pages lie near those that read them.
    bool fill_next() {
        const auto num_left = static_cast<int64_t>(memory_.num_bytes()) - num_filled_;
        const int64_t num_bytes = std::min(num_left, kWrittenAtOnce * pool_.num_threads());
        uint8_t* next = memory_.data() + num_filled_;
        if (num_bytes > 0)
            pool_.run([&](int worker) {
                pool_.share(worker, num_bytes, kWrittenAtOnce,
                            [&](int64_t begin, int64_t end) { std::memset(next + begin, 1, end - begin); });
            });
        num_filled_ += num_bytes;
        return num_bytes < num_left;
    }

    const char* isa_;
    std::mutex mutex_;  // the pool runs one body at a time
    ThreadPool pool_;
    PageBuffer memory_;
    int64_t num_filled_ = 0;
    LimitProbe probe_;
};

class OwnedLatencyProbe {
 public:
    OwnedLatencyProbe(int cpu, size_t num_bytes)
        : pool_({cpu}),
          memory_(num_bytes, "measuring the latency of memory"),
          probe_(pool_, memory_.data(), num_bytes) {}

    double measure(size_t num_bytes, double seconds) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return probe_.seconds_per_load(num_bytes, seconds);
    }

    size_t num_bytes() const { return memory_.num_bytes(); }

 private:
    std::mutex mutex_;
    ThreadPool pool_;
    PageBuffer memory_;
    LatencyProbe probe_;
};

void check_seconds(double seconds) {
    if (!(seconds > 0 && seconds <= kMaxSeconds)) throw UsageError("seconds must be above 0, at most 10");
}

bool is_power_of_two(size_t number) { return number != 0 && (number & (number - 1)) == 0; }

void bind_latency_probe(nb::module_& m) {
    nb::class_<OwnedLatencyProbe>(m, "LatencyProbe", "Measures how long one thread waits for what it reads.")
        .def(
            "__init__",
            [](OwnedLatencyProbe* self, int cpu, size_t num_bytes) {
                if (!is_power_of_two(num_bytes) || num_bytes < kMinLatencyBytes)
                    throw UsageError("num_bytes must be a power of two, at least 4096");
                nb::gil_scoped_release unlocked;
                new (self) OwnedLatencyProbe(cpu, num_bytes);
            },
            "cpu"_a, "num_bytes"_a, "Allocates the memory to read, for a thread on this CPU (-1: on any).")
        .def(
            "measure",
            [](OwnedLatencyProbe& self, size_t num_bytes, double seconds) {
                if (!is_power_of_two(num_bytes) || num_bytes < kMinLatencyBytes || num_bytes > self.num_bytes())
                    throw UsageError("num_bytes must be a power of two from 4096 to the memory of the probe");
                check_seconds(seconds);
                nb::gil_scoped_release unlocked;
                return self.measure(num_bytes, seconds);
            },
            "num_bytes"_a, "seconds"_a,
            "Seconds from one load to the next one that depends on it, in the first `num_bytes`, over so many "
            "seconds.");
}

}  // namespace

void bind_limit_probe(nb::module_& m) {
    nb::class_<OwnedProbe>(m, "LimitProbe", "Measures what the machine gives at this moment, all threads together.")
        .def(
            "__init__",
            [](OwnedProbe* self, std::vector<int> cpus, size_t num_bytes, const std::string& isa) {
                if (cpus.empty()) throw UsageError("cpus must name one CPU per thread, or -1");
                if (num_bytes < kMinBytes) throw UsageError("num_bytes must be at least 1 MiB");
                const KernelTable* kernels = choose_kernels(isa);
                nb::gil_scoped_release unlocked;
                new (self) OwnedProbe(std::move(cpus), num_bytes, *kernels);
            },
            "cpus"_a, "num_bytes"_a, "isa"_a = "",
            "Allocates the memory to read: `num_bytes`, more than every cache together. `isa` names the kernels whose "
            "instructions are measured, the best this CPU runs by default.")
        .def(
            "fill",
            [](OwnedProbe& self) {
                nb::gil_scoped_release unlocked;
                return self.fill();
            },
            "Takes the next MiB of the memory for each thread from the system, which may be slow; false when that was "
            "the last. `measure` takes what is left.")
        .def(
            "measure",
            [](OwnedProbe& self, int windows, double seconds) {
                if (windows < 1 || windows > kMaxWindows) throw UsageError("windows must be 1 to 1000");
                check_seconds(seconds);
                nb::gil_scoped_release unlocked;
                return self.measure(windows, seconds);
            },
            "windows"_a, "seconds"_a,
            "Bytes read from memory per second, int8 multiplications and additions per second in registers, and the "
            "same of floats: each the best of so many windows of so many seconds, which take turns.")
        .def_prop_ro("isa", &OwnedProbe::isa, "The kernels whose instructions are measured.");
    bind_latency_probe(m);
}

}  // namespace treadle::bindings
