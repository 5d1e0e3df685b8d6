// What an x86 CPU and its operating system allow. The CPU's own bits are not enough: vector registers exist for a
// program only if the system saves them on a context switch, which XCR0 tells.
#pragma once

#include <stdint.h>

#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif

namespace treadle {
namespace {

struct CpuidLeaf {
    uint32_t eax, ebx, ecx, edx;
};

inline CpuidLeaf cpuid(uint32_t leaf, uint32_t subleaf = 0) {
    CpuidLeaf out{0, 0, 0, 0};
#if defined(_MSC_VER) && !defined(__clang__)
    int registers[4];
    __cpuid(registers, 0);
    if (static_cast<uint32_t>(registers[0]) < leaf) return out;
    __cpuidex(registers, static_cast<int>(leaf), static_cast<int>(subleaf));
    out = {static_cast<uint32_t>(registers[0]), static_cast<uint32_t>(registers[1]),
           static_cast<uint32_t>(registers[2]), static_cast<uint32_t>(registers[3])};
#else
    __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);
#endif
    return out;
}

// XCR0. Only to be read when cpuid says that XSAVE is on.
inline uint64_t enabled_state() {
#if defined(_MSC_VER) && !defined(__clang__)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
#endif
}

inline bool has_bits(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

// AVX2, FMA and F16C, with the system saving XMM and YMM registers.
inline bool cpu_has_avx2() {
    const uint32_t leaf1 = cpuid(1).ecx;
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!has_bits(leaf1, fma | osxsave | avx | f16c)) return false;
    const uint32_t avx2 = 1u << 5;
    return has_bits(cpuid(7).ebx, avx2) && has_bits(enabled_state(), 0x6);
}

// AVX-VNNI on top: vpdpbusd on YMM registers without AVX-512.
inline bool cpu_has_avx2_vnni() {
    const uint32_t avx_vnni = 1u << 4;
    return cpu_has_avx2() && has_bits(cpuid(7, 1).eax, avx_vnni);
}

// AVX-512 F, DQ, BW, VL and VNNI on top of AVX2, with the system saving mask and ZMM registers.
inline bool cpu_has_avx512_vnni() {
    if (!cpu_has_avx2()) return false;
    const CpuidLeaf leaf7 = cpuid(7);
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    const uint32_t vnni = 1u << 11;
    return has_bits(leaf7.ebx, f | dq | bw | vl) && has_bits(leaf7.ecx, vnni) && has_bits(enabled_state(), 0xe6);
}

}  // namespace
}  // namespace treadle
