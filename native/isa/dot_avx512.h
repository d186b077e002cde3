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
constexpr int kIntRows = 6, kIntVectors = 4;  // integer sums; the float32 ones live in the cache
constexpr int kUnpackTiles = 0;               // never
constexpr Act kActU8 = Act::q8;
constexpr bool kPairedHalves = false;

// sum += w * a
static inline void accumulate(vf& sum, vf w, vf a) { sum = fma(w, a, sum); }

// A unit is what one operand of the activations, 32 bits, multiplies: here a quad of K.
struct DotU8 {
    using Acc = vi;
    static constexpr int kUnits = 1;   // per quad
    static constexpr int kSpan = 16;   // values of K between two visits to the float32 sums
    static constexpr int kOffset = 0;  // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int half) { return act.half_scale[half]; }
    static inline vi weight(const std::byte* p, int64_t quad_bytes, int unit) { return _mm512_loadu_si512(p + unit * quad_bytes); }
    static inline vi operand(int32_t a) { return _mm512_set1_epi32(a); }
    static inline vi product(vi w, vi a) { return _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, a); }
    static inline void mac(vi& acc, vi w, vi a) { acc = _mm512_dpbusd_epi32(acc, w, a); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

struct DotU4 : DotU8 {
    static inline vi weight(const std::byte* p, int64_t pair_bytes, int unit) {
        vi w = _mm512_loadu_si512(p + unit / 2 * pair_bytes);
        return _mm512_and_si512(unit % 2 ? _mm512_srli_epi32(w, 4) : w, _mm512_set1_epi32(0x0f0f0f0f));
    }
};

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
static inline void store_q8w(std::byte*, const vi*, const ActGroup&) {}
// 32 integers as the units of DotU8.
static inline void store_units(std::byte* out, const vi* q) { store_q8(out, q); }

}  // namespace
}  // namespace octavo::ISA
