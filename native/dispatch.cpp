#include "dispatch.h"

#include <stdexcept>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace octavo {

// OCTAVO_WITH_AMX and OCTAVO_WITH_AVX2_VNNI say that the compiler knew those levels.
#if defined(__x86_64__)
namespace amx {
extern const KernelTable table;
}
namespace avx512_bf16 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
namespace avx2_vnni {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
#elif defined(__aarch64__)
namespace neon_i8mm {
extern const KernelTable table;
}
namespace neon {
extern const KernelTable table;
}
#endif
namespace scalar {
extern const KernelTable table;
}

#if defined(__x86_64__)
namespace {

// cpuid says what the processor has; XCR0 says which registers the operating system saves. Both are needed.
struct Features {
    bool avx2 = false, avx_vnni = false, avx512 = false, bf16 = false, amx = false;
    // Intel's processors since Golden Cove, which have AVX512-FP16, start a vdpbf16ps of 64 bytes every other cycle: with 64 operations
    // each, half of what two vfmadd231ps a cycle do (96 and 186 GFLOP/s a core of Emerald Rapids). Where AMX is hidden from a guest, plain
    // AVX-512 is the faster level.
    bool half_rate_bf16 = false;
};

bool is_intel() {
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && d == signature_INTEL_edx && c == signature_INTEL_ecx;
}

// The registers of AMX are a process's once it has asked for them. Linux refuses where a thread's stack for signals has no room for them.
bool permit_tiles() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Whether tiles are what the kernels were written for: eight of 16 rows of 64 bytes.
bool has_palette() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) || a < 1) return false;
    __cpuid_count(0x1d, 1, a, b, c, d);
    return (b & 0xffffu) == 64 && b >> 16 == 8 && (c & 0xffffu) == 16;
}

Features detect() {
    Features found;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    bool osxsave = c & (1u << 27), avx = c & (1u << 28), fma = c & (1u << 12), f16c = c & (1u << 29);
    if (!osxsave || !avx) return found;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    bool ymm = (low & 0x6u) == 0x6u, zmm = (low & 0xe6u) == 0xe6u, tiles = (low & 0x60000u) == 0x60000u;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = ymm && fma && f16c && (b & (1u << 5));
    bool f = b & (1u << 16), dq = b & (1u << 17), bw = b & (1u << 30), vl = b & (1u << 31);
    bool vnni = c & (1u << 11), amx = (d & (1u << 22)) && (d & (1u << 24)) && (d & (1u << 25));
    found.avx512 = found.avx2 && zmm && f && dq && bw && vl && vnni;
    found.half_rate_bf16 = (d & (1u << 23)) && is_intel();
    unsigned max_subleaf = a;
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        found.avx_vnni = found.avx2 && (a & (1u << 4));
        found.bf16 = found.avx512 && (a & (1u << 5));
    }
    found.amx = found.bf16 && tiles && amx && has_palette() && permit_tiles();
    return found;
}

}  // namespace
#endif

const std::vector<IsaLevel>& isa_levels() {
    static const std::vector<IsaLevel> levels = [] {
        std::vector<IsaLevel> list;
#if defined(__x86_64__)
        Features has = detect();
#ifdef OCTAVO_WITH_AMX
        list.push_back(
            {&amx::table, has.amx, "AMX TILE/BF16/INT8 and the system's permission to use it, AVX-512 F/BW/DQ/VL, VNNI and BF16"});
#endif
        list.push_back({&avx512_bf16::table, has.bf16, "AVX-512 F/BW/DQ/VL, VNNI and BF16"});
        list.push_back({&avx512::table, has.avx512, "AVX-512 F/BW/DQ/VL and VNNI"});
        if (has.half_rate_bf16) std::swap(list[list.size() - 2], list.back());
#ifdef OCTAVO_WITH_AVX2_VNNI
        list.push_back({&avx2_vnni::table, has.avx_vnni, "AVX2, FMA, F16C and AVX-VNNI"});
#endif
        list.push_back({&avx2::table, has.avx2, "AVX2, FMA and F16C"});
#elif defined(__aarch64__)
        // The kernel tells what the processor has and it lets programs use.
        const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
        const bool dotprod = first & HWCAP_ASIMDDP, i8mm = second & HWCAP2_I8MM, bf16 = second & HWCAP2_BF16;
        list.push_back({&neon_i8mm::table, dotprod && i8mm && bf16, "dotprod, I8MM and BF16"});
        list.push_back({&neon::table, dotprod, "dotprod"});
#endif
        list.push_back({&scalar::table, true, ""});
        return list;
    }();
    return levels;
}

const KernelTable* select_isa(const std::string& name) {
    std::string usable;
    for (const auto& level : isa_levels()) {
        if (level.supported && (name.empty() || name == level.table->name)) return level.table;
        if (level.supported) usable += (usable.empty() ? "" : ", ") + std::string(level.table->name);
        if (!level.supported && name == level.table->name)
            throw std::invalid_argument("This machine cannot run the instruction set '" + name + "': it lacks some of " + level.missing +
                                        ".");
    }
    throw std::invalid_argument("Unknown instruction set '" + name + "'. This machine can run: " + usable + ".");
}

}  // namespace octavo
