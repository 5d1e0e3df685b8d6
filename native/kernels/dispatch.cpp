// Which kernel tables this build has and this CPU can run.
#include <string.h>

#include "treadle/kernels.h"

#if defined(TREADLE_HAVE_AVX2) || defined(TREADLE_HAVE_AVX2_VNNI) || defined(TREADLE_HAVE_AVX512_VNNI)
#include "cpu_x86.h"
#endif
#if defined(TREADLE_HAVE_NEON_DOTPROD) || defined(TREADLE_HAVE_NEON_I8MM)
#include "cpu_arm.h"
#endif

namespace treadle {

#if defined(TREADLE_HAVE_AVX2)
extern const KernelTable kAvx2Kernels;
#endif
#if defined(TREADLE_HAVE_AVX2_VNNI)
extern const KernelTable kAvx2VnniKernels;
#endif
#if defined(TREADLE_HAVE_AVX512_VNNI)
extern const KernelTable kAvx512VnniKernels;
#endif
#if defined(TREADLE_HAVE_NEON_DOTPROD)
extern const KernelTable kNeonDotprodKernels;
#endif
#if defined(TREADLE_HAVE_NEON_I8MM)
extern const KernelTable kNeonI8mmKernels;
#endif

namespace {

enum { kMaxTables = 4 };

// Best first.
struct Runnable {
    const KernelTable* tables[kMaxTables] = {};
    const char* names[kMaxTables + 1] = {};
    int count = 0;

    Runnable() {
#if defined(TREADLE_HAVE_AVX512_VNNI)
        if (cpu_has_avx512_vnni()) add(&kAvx512VnniKernels);
#endif
#if defined(TREADLE_HAVE_AVX2_VNNI)
        if (cpu_has_avx2_vnni()) add(&kAvx2VnniKernels);
#endif
#if defined(TREADLE_HAVE_AVX2)
        if (cpu_has_avx2()) add(&kAvx2Kernels);
#endif
#if defined(TREADLE_HAVE_NEON_I8MM)
        if (cpu_has_i8mm()) add(&kNeonI8mmKernels);
#endif
#if defined(TREADLE_HAVE_NEON_DOTPROD)
        if (cpu_has_dotprod()) add(&kNeonDotprodKernels);
#endif
        add(&kRefKernels);
    }

 private:
    void add(const KernelTable* table) {
        tables[count] = table;
        names[count++] = table->isa;
    }
};

const Runnable& runnable() {
    static const Runnable tables;
    return tables;
}

}  // namespace

const KernelTable* find_kernels(const char* isa) {
    const Runnable& found = runnable();
    if (isa == nullptr || *isa == '\0') return found.tables[0];
    for (int i = 0; i < found.count; ++i) {
        if (strcmp(isa, found.names[i]) == 0) return found.tables[i];
    }
    return nullptr;
}

const char* const* runnable_isas() { return runnable().names; }

}  // namespace treadle
