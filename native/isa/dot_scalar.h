// Dot products of the linear kernels in plain C++: the shape of those of AVX-512, 16 columns a vector.
#pragma once

#include "../layout.h"

// Nothing to gain from unrolled tiles, and minutes of compilation to lose.
#define OCTAVO_UNROLL _Pragma("GCC unroll 1")

namespace octavo::ISA {
namespace {  // members of a class in a named namespace would be weak symbols

constexpr int kPanelVectors = 4;  // a panel has 64 columns
constexpr int kFloatRows = 6, kFloatVectors = 2;
constexpr int kIntRows = 4, kIntVectors = 2;
constexpr int kUnpackTiles = 0;  // never

// Lane i: acc + the dot product of the four unsigned bytes of w and the four signed ones of a.
__attribute__((noinline)) static vi dot_u8s8(vi acc, vi w, int32_t a) {
    for (int j = 0; j < 4; ++j) acc += (vi)(((vu)w >> (8 * j)) & 0xffu) * static_cast<int32_t>(static_cast<int8_t>(a >> (8 * j)));
    return acc;
}

// sum += w * a
static inline void accumulate(vf& sum, vf w, vf a) { sum = fma(w, a, sum); }

static inline int32_t spread(int32_t a) { return a; }

// 32 integers as the units of an activation row.
static inline void store_q8(std::byte* out, const vi* q) {
    for (int i = 0; i < 32; ++i) out[i] = static_cast<std::byte>(q[i / W][i % W]);
}

}  // namespace
}  // namespace octavo::ISA

#include "dot_quads.h"
