// What the comparisons of kernel tables with `ref` share: values to feed them and a count of what differs.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bindings/guarded.h"
#include "treadle/kernels.h"

namespace treadle::tests {

using bindings::Guarded;
using std::to_string;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kSpecials[] = {0.0f,     -0.0f,    1e-45f, -1e-40f, 1e-37f, 6e-8f, 6.1e-5f, 0.5f,
                                      65519.0f, 65520.0f, 1e30f,  3e38f,   -3e38f, kInf,  -kInf,   kNan};

// The same numbers on every machine, as long as no two are asked for in one expression.
class Random {
 public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    uint32_t bits() { return static_cast<uint32_t>(engine_() >> 32); }
    int below(int limit) { return static_cast<int>(bits() % static_cast<uint32_t>(limit)); }
    float uniform(float low, float high) { return low + (high - low) * static_cast<float>(bits() >> 8) * 0x1p-24f; }

    // Of one magnitude, with a few outliers.
    std::vector<float> values(size_t count, float magnitude) {
        std::vector<float> out(count);
        for (float& v : out) {
            v = uniform(-magnitude, magnitude);
            if (below(64) == 0) v *= 50.0f;
        }
        return out;
    }

    // An f16 between 2^-9 and 2^-4 of either sign.
    uint16_t small_f16() {
        const int exponent = 6 + below(5);
        return static_cast<uint16_t>((bits() & 0x83ff) | static_cast<uint32_t>(exponent) << 10);
    }

 private:
    std::mt19937_64 engine_;
};

// One table beside `ref`. A mismatch is printed and counted; what `ref` gave goes into the fingerprint, which is the
// same on every machine.
struct Comparison {
    const KernelTable& ref;
    const KernelTable& table;
    int64_t num_values = 0;
    int num_failures = 0;
    uint64_t fingerprint = 0xcbf29ce484222325;  // FNV-1a

    template <class T>
    void expect_same(const std::string& what, const Guarded<T>& found, const Guarded<T>& expected) {
        for (size_t i = 0; i < found.count(); ++i) add_to_fingerprint(expected.data()[i]);
        expect_same_again(what, found, expected);
    }

    // Of values that are in the fingerprint already.
    template <class T>
    void expect_same_again(const std::string& what, const Guarded<T>& found, const Guarded<T>& expected) {
        num_values += static_cast<int64_t>(found.count());
        for (size_t i = 0; i < found.count(); ++i) {
            if (same(found.data()[i], expected.data()[i])) continue;
            ++num_failures;
            if (num_failures <= 20) {
                printf("%s: %s: element %zu is %.9g, ref has %.9g\n", table.isa, what.c_str(), i,
                       static_cast<double>(found.data()[i]), static_cast<double>(expected.data()[i]));
            }
            return;
        }
    }

    template <class T>
    void add_to_fingerprint(T value) {
        uint32_t bits = 0;
        memcpy(&bits, &value, sizeof value);
        if (is_nan(value)) bits = 0x7fc00000;
        fingerprint = (fingerprint ^ bits) * 0x100000001b3;
    }

    // Equal bits, but any NaN for a NaN: its sign and payload are free.
    template <class T>
    static bool same(T a, T b) {
        return memcmp(&a, &b, sizeof a) == 0 || (is_nan(a) && is_nan(b));
    }

    static bool is_nan(float value) { return std::isnan(value); }
    static bool is_nan(uint16_t value) { return (value & 0x7fff) > 0x7c00; }  // an f16
    static bool is_nan(int8_t) { return false; }
    static bool is_nan(int32_t) { return false; }
};

// Each runs all operations of its kind over shapes, extremes and values that are no numbers.
void compare_products(Comparison& comparison);
void compare_quantize(Comparison& comparison);
void compare_vector_ops(Comparison& comparison);
void compare_attention(Comparison& comparison);

}  // namespace treadle::tests
