// Multiply-adds of floats on AVX2, with or without VNNI: one, and for many rows of float32 weights the whole loop over K.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo::ISA {
namespace {

// sum += w * a. In assembler, as GCC otherwise turns sums and operands about (vfmadd132ps) until it has to spill a third of the sums.
static inline void accumulate(vf& sum, vf w, vf a) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(a)); }

#define OCTAVO_HAS_FLOAT_ROWS
// Row r of the tile: its value of K from `address` times both vectors of weights.
#define OCTAVO_ROW(r, address, sum0, sum1)      \
    ".if %c[rows] > " #r                        \
    "\n"                                        \
    "vbroadcastss 4*\\k" address                \
    ", %%ymm13\n"                               \
    "vfmadd231ps %%ymm13, %%ymm14, %%ymm" #sum0 \
    "\n"                                        \
    "vfmadd231ps %%ymm13, %%ymm15, %%ymm" #sum1 "\n.endif\n"
// sums [R][16], kPitch floats from row to row, += w [steps][16] times R rows of activations; with kFresh, =. steps is a multiple of 4 and
// not 0. What counts is the number of instructions: 20 for 12 multiply-adds, where the compiler's loop has 26 and, unrolled, spills.
template <int R, int kPitch, bool kFresh>
static inline void multiply_rows(const std::byte* w, const std::byte* a, int64_t a_stride, int64_t steps, float* sums,
                                 const std::byte* ahead, int64_t ahead_step) {
    const std::byte *a3 = R > 3 ? a + 3 * a_stride : a, *end = w + 64 * steps;
    asm volatile(
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
        ".if 2 * %c[rows] > \\i\n"
        ".if %c[fresh]\nvxorps %%xmm\\i, %%xmm\\i, %%xmm\\i\n"
        ".else\nvmovups (\\i>>1)*%c[pitch]+32*(\\i&1)(%[sums]), %%ymm\\i\n.endif\n.endif\n.endr\n"
        ".p2align 5\n"
        "1:\n"
        ".irp k, 0, 1, 2, 3\n"
        "vmovups 64*\\k(%[w]), %%ymm14\n"
        "vmovups 64*\\k+32(%[w]), %%ymm15\n"
        OCTAVO_ROW(0, "(%[a])", 0, 1) OCTAVO_ROW(1, "(%[a], %[stride])", 2, 3) OCTAVO_ROW(2, "(%[a], %[stride], 2)", 4, 5)
        OCTAVO_ROW(3, "(%[a3])", 6, 7) OCTAVO_ROW(4, "(%[a3], %[stride])", 8, 9) OCTAVO_ROW(5, "(%[a3], %[stride], 2)", 10, 11)
        ".endr\n"
        "prefetcht1 (%[ahead])\n"
        "add %[ahead_step], %[ahead]\n"
        "add $256, %[w]\n"
        "add $16, %[a]\n"
        "add $16, %[a3]\n"
        "cmp %[end], %[w]\n"
        "jne 1b\n"
        ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
        ".if 2 * %c[rows] > \\i\nvmovups %%ymm\\i, (\\i>>1)*%c[pitch]+32*(\\i&1)(%[sums])\n.endif\n.endr\n"
        : [w] "+r"(w), [a] "+r"(a), [a3] "+r"(a3), [ahead] "+r"(ahead)
        : [stride] "r"(a_stride), [end] "r"(end), [sums] "r"(sums), [rows] "i"(R), [ahead_step] "r"(ahead_step),
          [pitch] "i"(4 * kPitch), [fresh] "i"(kFresh)
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm13", "xmm14",
          "xmm15");
}
#undef OCTAVO_ROW

}  // namespace
}  // namespace octavo::ISA
