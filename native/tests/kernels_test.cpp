// Every kernel table this CPU can run against `ref`, bit for bit, where no Python runs: emulators, boards without a
// package. tests/native has the same comparison and more, with oracles other than `ref`.
//
//   TREADLE_EXPECT_ISAS=neon_dotprod,ref kernels_test
//
// Every array lies against a guard page. Prints one line per table, with a fingerprint of what `ref` gave: that is the
// same on every machine. Exit code 1 if a table differs or an expected one is missing.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "comparison.h"
#include "treadle/kernels.h"

namespace {

using namespace treadle;
using namespace treadle::tests;

bool compare_table(const KernelTable& table) {
    Comparison c{kRefKernels, table};
    compare_products(c);
    compare_quantize(c);
    compare_vector_ops(c);
    compare_attention(c);
    // They give no result; what this processor cannot run ends the test.
    table.peak_int8(1);
    table.peak_f32(1);
    printf("%-12s %lld values, fingerprint of ref %016llx, %d arrays differ\n", table.isa,
           static_cast<long long>(c.num_values), static_cast<unsigned long long>(c.fingerprint), c.num_failures);
    fflush(stdout);
    return c.num_failures == 0;
}

// Every name of the comma list TREADLE_EXPECT_ISAS can run here.
bool expected_tables_run() {
    const char* list = getenv("TREADLE_EXPECT_ISAS");
    if (list == nullptr) return true;
    bool complete = true;
    const std::string names = list;
    for (size_t begin = 0; begin < names.size();) {
        const size_t end = std::min(names.find(',', begin), names.size());
        const std::string name = names.substr(begin, end - begin);
        begin = end + 1;
        if (name.empty() || find_kernels(name.c_str()) != nullptr) continue;
        printf("table %s is expected (TREADLE_EXPECT_ISAS) but cannot run here\n", name.c_str());
        complete = false;
    }
    return complete;
}

}  // namespace

int main() {
    bool passed = expected_tables_run();
    for (const char* const* isa = runnable_isas(); *isa != nullptr; ++isa) {
        passed = compare_table(*find_kernels(*isa)) && passed;
    }
    return passed ? 0 : 1;
}
