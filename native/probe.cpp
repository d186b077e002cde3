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

// Twelve chains hide the latency of fma where two start in a cycle; where four do, as on some Arm processors, the limit is underrated. The
// empty asm keeps the sums in registers and the loop from being folded.
#define OCTAVO_PROBE(name, flags, width, constraint, instruction)                                                                        \
    __attribute__((target(flags))) static double name(int64_t rounds) {                                                                  \
        typedef float vector __attribute__((vector_size(4 * width)));                                                                    \
        vector s[12] = {}, x = vector{} + 0.5f;                                                                                          \
        for (int64_t round = 0; round < rounds; ++round)                                                                                 \
            asm volatile(instruction                                                                                                     \
                         : "+" constraint(s[0]), "+" constraint(s[1]), "+" constraint(s[2]), "+" constraint(s[3]), "+" constraint(s[4]), \
                           "+" constraint(s[5]), "+" constraint(s[6]), "+" constraint(s[7]), "+" constraint(s[8]), "+" constraint(s[9]), \
                           "+" constraint(s[10]), "+" constraint(s[11])                                                                  \
                         : constraint(x));                                                                                               \
        return 12.0 * 2 * width * static_cast<double>(rounds);                                                                           \
    }

#if defined(__x86_64__)
#define OCTAVO_FMA(i) "vfmadd231ps %12, %12, %" #i "\n"
#elif defined(__aarch64__)
#define OCTAVO_FMA(i) "fmla %" #i ".4s, %12.4s, %12.4s\n"
#endif
// clang-format off
#define OCTAVO_FMAS                                                                      \
    OCTAVO_FMA(0) OCTAVO_FMA(1) OCTAVO_FMA(2) OCTAVO_FMA(3) OCTAVO_FMA(4) OCTAVO_FMA(5)  \
    OCTAVO_FMA(6) OCTAVO_FMA(7) OCTAVO_FMA(8) OCTAVO_FMA(9) OCTAVO_FMA(10) OCTAVO_FMA(11)
// clang-format on
#if defined(__x86_64__)
OCTAVO_PROBE(fma_16, "avx512f", 16, "v", OCTAVO_FMAS)
OCTAVO_PROBE(fma_8, "avx2,fma", 8, "x", OCTAVO_FMAS)
#elif defined(__aarch64__)
OCTAVO_PROBE(fma_4, "arch=armv8-a", 4, "w", OCTAVO_FMAS)
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

double probe_fma(int lanes, int64_t rounds) {
#if defined(__x86_64__)
    if (lanes == 16) return fma_16(rounds);
    if (lanes == 8) return fma_8(rounds);
#elif defined(__aarch64__)
    if (lanes == 4) return fma_4(rounds);
#endif
    (void)lanes;
    return fma_1(rounds);
}

}  // namespace octavo
