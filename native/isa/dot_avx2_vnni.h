// Dot products of the linear kernels for AVX2 with AVX-VNNI: those of AVX-512, to the bit, in vectors of half the length.
#pragma once

#include "../layout.h"
#include "fma_avx2.h"

// Loops over the registers of a tile.
#define OCTAVO_UNROLL _Pragma("GCC unroll 32")

namespace octavo::ISA {
namespace {  // members of a class in a named namespace would be weak symbols

// 16 registers. Floats: 6 x 2 sums, 2 of weights, a broadcast. Integers: 4 x 2 sums, 2 of weights, a broadcast; the float32 sums live in
// the cache. With 6 x 2 GCC moves more than twice as many registers to and from the stack for each dot product.
constexpr int kPanelVectors = 2;  // a panel has 16 columns, as with AVX2
constexpr int kFloatRows = 6, kFloatVectors = 2;
constexpr int kIntRows = 4, kIntVectors = 2;
constexpr int kUnpackTiles = 3;  // as with AVX2

static inline vi spread(int32_t a) { return set1_i(a); }
static inline vi dot_u8s8(vi acc, vi w, vi a) { return _mm256_dpbusd_avx_epi32(acc, w, a); }

// 32 integers as the units of an activation row.
static inline void store_q8(std::byte* out, const vi* q) {
    const vi bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));  // 4 of each, then the other 4
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

}  // namespace
}  // namespace octavo::ISA

#include "dot_quads.h"
