// Dot products of the linear kernels for AVX2 with AVX-VNNI: those of AVX-512, to the bit, in vectors of half the length.
#pragma once

#include "../layout.h"
#include "rows_avx2.h"

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
constexpr Act kActU8 = Act::q8;
constexpr bool kPairedHalves = false;

// sum += w * a, in assembler for GCC's sake (dot_avx2.h).
static inline void accumulate(vf& sum, vf w, vf a) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(a)); }

// A unit is what one operand of the activations, 32 bits, multiplies: here a quad of K.
struct DotU8 {
    using Acc = vi;
    static constexpr int kUnits = 1;   // per quad
    static constexpr int kSpan = 16;   // values of K between two visits to the float32 sums
    static constexpr int kOffset = 0;  // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int half) { return act.half_scale[half]; }
    static inline vi weight(const std::byte* p, int64_t quad_bytes, int unit) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + unit * quad_bytes));
    }
    static inline vi operand(int32_t a) { return _mm256_set1_epi32(a); }
    static inline vi product(vi w, vi a) { return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), w, a); }
    static inline void mac(vi& acc, vi w, vi a) { acc = _mm256_dpbusd_avx_epi32(acc, w, a); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

struct DotU4 : DotU8 {
    static inline vi weight(const std::byte* p, int64_t pair_bytes, int unit) {
        vi w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + unit / 2 * pair_bytes));
        return _mm256_and_si256(unit % 2 ? _mm256_srli_epi32(w, 4) : w, _mm256_set1_epi8(0x0f));
    }
};

// 32 integers as the units of an activation row.
static inline void store_q8(std::byte* out, const vi* q) {
    const vi bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));  // 4 of each, then the other 4
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
static inline void store_q8w(std::byte*, const vi*, const ActGroup&) {}
// 32 integers as the units of DotU8.
static inline void store_units(std::byte* out, const vi* q) { store_q8(out, q); }

}  // namespace
}  // namespace octavo::ISA
