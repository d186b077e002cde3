// Dot products of the linear kernels for AVX-512 with VNNI, and with BF16 where OCTAVO_HAS_DPBF16 is set.
#pragma once

#include "../layout.h"

// Loops over the registers of a tile.
#define OCTAVO_UNROLL _Pragma("GCC unroll 32")

namespace octavo::ISA {
namespace {  // members of a class in a named namespace would be weak symbols

// 32 registers: 6 x 4 sums, 4 of weights, and a broadcast, which may be an operand in memory.
constexpr int kPanelVectors = 4;  // a panel has 64 columns
constexpr int kFloatRows = 6, kFloatVectors = 4;
constexpr int kIntRows = 12, kIntVectors = 2;  // integer sums; the float32 ones live in the cache
constexpr int kUnpackTiles = 3;                // from which on a block of a panel is unpacked once for all

// sum += w * a
static inline void accumulate(vf& sum, vf w, vf a) { sum = fma(w, a, sum); }

static inline vi spread(int32_t a) { return set1_i(a); }
static inline vi dot_u8s8(vi acc, vi w, vi a) { return _mm512_dpbusd_epi32(acc, w, a); }

#ifdef OCTAVO_HAS_DPBF16
static inline void dot_bf16(vf& sum, vi w, int32_t a) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(_mm512_set1_epi32(a)));
}
#endif

// 32 integers as the units of an activation row.
static inline void store_q8(std::byte* out, const vi* q) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q[0]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 1, _mm512_cvtepi32_epi8(q[1]));
}

}  // namespace
}  // namespace octavo::ISA

#include "dot_quads.h"
