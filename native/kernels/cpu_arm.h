// What an AArch64 CPU allows, as its operating system tells: registers need no extra support, the system saves them
// all.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace treadle {
namespace {

#if defined(__APPLE__)
inline bool has_feature(const char* name) {
    int value = 0;
    size_t num_bytes = sizeof value;
    return sysctlbyname(name, &value, &num_bytes, nullptr, 0) == 0 && value != 0;
}
#endif

// sdot (FEAT_DotProd). Bits are those of the Linux kernel's asm/hwcap.h, which older C libraries do not name.
inline bool cpu_has_dotprod() {
#if defined(__linux__)
    const unsigned long asimddp = 1ul << 20;
    return (getauxval(AT_HWCAP) & asimddp) != 0;
#elif defined(__APPLE__)
    return has_feature("hw.optional.arm.FEAT_DotProd");
#else
    return false;
#endif
}

// smmla (FEAT_I8MM) on top.
inline bool cpu_has_i8mm() {
#if defined(__linux__)
    const unsigned long i8mm = 1ul << 13;
    return cpu_has_dotprod() && (getauxval(AT_HWCAP2) & i8mm) != 0;
#elif defined(__APPLE__)
    return cpu_has_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM");
#else
    return false;
#endif
}

}  // namespace
}  // namespace treadle
