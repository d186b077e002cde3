#include "probe.h"

#include <cstring>

namespace octavo {

uint64_t probe_read(const std::byte* data, int64_t bytes) {
    typedef uint64_t vector __attribute__((vector_size(16)));
    vector sum[8] = {};
    for (int64_t at = 0; at + 128 <= bytes; at += 128)
        for (int i = 0; i < 8; ++i) {
            vector value;
            std::memcpy(&value, data + at + 16 * i, 16);
            sum[i] ^= value;
        }
    for (int i = 1; i < 8; ++i) sum[0] ^= sum[i];
    return sum[0][0] ^ sum[0][1];
}

// Twelve chains hide the latency of any of these where two start in a cycle; where four do, as on some Arm processors, the limit is
// underrated. The empty asm keeps the sums in registers and the loop from being folded. `operations`: those of an instruction on 32 bits,
// two for each multiply-add.
#define OCTAVO_PROBE(name, flags, width, constraint, scratch, operations, instruction)                                                   \
    __attribute__((target(flags))) static double name(int64_t rounds) {                                                                  \
        typedef float vector __attribute__((vector_size(4 * width)));                                                                    \
        vector s[12] = {}, x = vector{} + 0.5f;                                                                                          \
        for (int64_t round = 0; round < rounds; ++round)                                                                                 \
            asm volatile(instruction(0) instruction(1) instruction(2) instruction(3) instruction(4) instruction(5) instruction(6)        \
                             instruction(7) instruction(8) instruction(9) instruction(10) instruction(11)                                \
                         : "+" constraint(s[0]), "+" constraint(s[1]), "+" constraint(s[2]), "+" constraint(s[3]), "+" constraint(s[4]), \
                           "+" constraint(s[5]), "+" constraint(s[6]), "+" constraint(s[7]), "+" constraint(s[8]), "+" constraint(s[9]), \
                           "+" constraint(s[10]), "+" constraint(s[11])                                                                  \
                         : constraint(x)                                                                                                 \
                         : scratch);                                                                                                     \
        return 12.0 * operations * width * static_cast<double>(rounds);                                                                  \
    }

#if defined(__x86_64__)
#define OCTAVO_FMA(i) "vfmadd231ps %12, %12, %" #i "\n"
#define OCTAVO_DPBF16(i) "vdpbf16ps %12, %12, %" #i "\n"
#define OCTAVO_DPBUSD(i) "vpdpbusd %12, %12, %" #i "\n"
#define OCTAVO_VEX_DPBUSD(i) "%{vex%} vpdpbusd %12, %12, %" #i "\n"
#define OCTAVO_MADDUBSW(i) "vpmaddubsw %12, %12, %%ymm15\nvpaddw %%ymm15, %" #i ", %" #i "\n"
#define OCTAVO_MADDWD(i) "vpmaddwd %12, %12, %%ymm15\nvpaddd %%ymm15, %" #i ", %" #i "\n"
OCTAVO_PROBE(fma_8, "avx2,fma", 8, "x", "xmm15", 2, OCTAVO_FMA)
OCTAVO_PROBE(maddubsw_8, "avx2", 8, "x", "xmm15", 8, OCTAVO_MADDUBSW)
OCTAVO_PROBE(maddwd_8, "avx2", 8, "x", "xmm15", 4, OCTAVO_MADDWD)
#ifdef OCTAVO_WITH_AVX2_VNNI
OCTAVO_PROBE(dpbusd_8, "avx2,avxvnni", 8, "x", "xmm15", 8, OCTAVO_VEX_DPBUSD)
#endif
OCTAVO_PROBE(fma_16, "avx512f", 16, "v", "xmm15", 2, OCTAVO_FMA)
OCTAVO_PROBE(dpbusd_16, "avx512f,avx512vnni", 16, "v", "xmm15", 8, OCTAVO_DPBUSD)
OCTAVO_PROBE(dpbf16_16, "avx512f,avx512bf16", 16, "v", "xmm15", 4, OCTAVO_DPBF16)
#ifdef OCTAVO_WITH_AMX
// Products of tiles: six sums, as one product takes as long as four can be started in.
#define OCTAVO_TILES(name, operations, instruction)                                                                  \
    static double name(int64_t rounds) {                                                                             \
        struct {                                                                                                     \
            uint8_t palette = 1, unused[15] = {};                                                                    \
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};                                               \
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};                                                     \
        } config;                                                                                                    \
        asm volatile("ldtilecfg %0" : : "m"(config));                                                                \
        for (int64_t round = 0; round < rounds; ++round)                                                             \
            asm volatile(instruction(0) instruction(1) instruction(2) instruction(3) instruction(4) instruction(5)); \
        asm volatile("tilerelease");                                                                                 \
        return 6.0 * 16 * 16 * operations * static_cast<double>(rounds);                                             \
    }
#define OCTAVO_TDPBF16(i) "tdpbf16ps %tmm7, %tmm6, %tmm" #i "\n"
#define OCTAVO_TDPBSUD(i) "tdpbsud %tmm7, %tmm6, %tmm" #i "\n"
OCTAVO_TILES(tiles_bf16, 64, OCTAVO_TDPBF16)
OCTAVO_TILES(tiles_s8u8, 128, OCTAVO_TDPBSUD)
#endif
#elif defined(__aarch64__)
#define OCTAVO_FMA(i) "fmla %" #i ".4s, %12.4s, %12.4s\n"
#define OCTAVO_SDOT(i) "sdot %" #i ".4s, %12.16b, %12.16b\n"
OCTAVO_PROBE(fma_4, "arch=armv8-a", 4, "w", "v31", 2, OCTAVO_FMA)
OCTAVO_PROBE(sdot_4, "arch=armv8.2-a+dotprod", 4, "w", "v31", 8, OCTAVO_SDOT)
#endif

static double fma_1(int64_t rounds) {
    float s[12] = {};
    for (int64_t round = 0; round < rounds; ++round)
        for (float& sum : s) {
            sum = sum * 0.5f + 0.5f;
            asm volatile("" : "+m"(sum));
        }
    return 12.0 * 2 * static_cast<double>(rounds);
}

double probe_dot(const std::string& level, Act act, int64_t rounds) {
#if defined(__x86_64__)
#ifdef OCTAVO_WITH_AMX
    if (level == "amx" && (act == Act::bf16 || act == Act::s8)) return act == Act::bf16 ? tiles_bf16(rounds) : tiles_s8u8(rounds);
#endif
#ifdef OCTAVO_WITH_AVX2_VNNI
    if (level == "avx2_vnni") return act == Act::q8 || act == Act::s8 ? dpbusd_8(rounds) : fma_8(rounds);
#endif
    if (level == "avx512_bf16" && act == Act::bf16) return dpbf16_16(rounds);
    if (level == "amx" || level == "avx512_bf16" || level == "avx512")
        return act == Act::q8 || act == Act::s8 ? dpbusd_16(rounds) : fma_16(rounds);
    if (level == "avx2")
        return act == Act::q8 || act == Act::q8h   ? maddubsw_8(rounds)
               : act == Act::q8w || act == Act::s8 ? maddwd_8(rounds)
                                                   : fma_8(rounds);
#elif defined(__aarch64__)
    if (level != "scalar") return act == Act::q8 || act == Act::s8 ? sdot_4(rounds) : fma_4(rounds);
#endif
    (void)level, (void)act;
    return fma_1(rounds);
}

}  // namespace octavo
