// Dot products of the linear kernels for AVX2, which has no VNNI.
#pragma once

#include "../layout.h"
#include "fma_avx2.h"

// Loops over the registers of a tile.
#define OCTAVO_UNROLL _Pragma("GCC unroll 32")

namespace octavo::ISA {
namespace {  // members of a class in a named namespace would be weak symbols

// 16 registers. Floats: 6 x 2 sums, 2 of weights, a broadcast. Integers: 4 x 2 sums, 2 of weights, a broadcast, a product, a mask; the
// float32 sums live in the cache, and are visited once a group.
constexpr int kPanelVectors = 2;  // a panel has 16 columns, so that a tile reads it without gaps: a third more than from 32 for many rows
constexpr int kFloatRows = 6, kFloatVectors = 2;
constexpr int kIntRows = 4, kIntVectors = 2;
constexpr int kUnpackTiles = 3;  // from which on a block of a panel is unpacked once for all
constexpr Act kActU8 = Act::q8w;
constexpr bool kPairedHalves = true;

// Bytes of 8 bits would saturate vpmaddubsw: the even and the odd ones of a quad are widened, and meet pairs of 16-bit activations, which
// have the factors of their halves in them. A sum of 32 stays below 2^28.
struct DotU8 {
    using Acc = vi;
    static constexpr int kUnits = 2;   // per quad
    static constexpr int kSpan = 32;   // values of K between two visits to the float32 sums
    static constexpr int kOffset = 0;  // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int) { return act.scale; }
    static inline vi weight(const std::byte* p, int64_t quad_bytes, int unit) {
        vi w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + unit / 2 * quad_bytes));
        return unit % 2 ? _mm256_srli_epi16(w, 8) : _mm256_and_si256(w, _mm256_set1_epi16(0xff));
    }
    static inline vi operand(int32_t a) { return _mm256_set1_epi32(a); }
    static inline vi product(vi w, vi a) { return _mm256_madd_epi16(w, a); }
    static inline void mac(vi& acc, vi w, vi a) { asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(product(w, a))); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

// A pair of products is at most 2 * 15 * 127, and the eight quads of a group of 32 add up to 30480: sums of 16 bits do not overflow. The
// two in a lane belong to the two halves of the group, and meet as integers, by way of their factors.
struct DotU4 {
    using Acc = vi;
    static constexpr int kUnits = 1;
    static constexpr int kSpan = 32;
    static constexpr int kOffset = 0;
    static inline float scale(const ActGroup& act, int) { return act.scale; }
    static inline vi weight(const std::byte* p, int64_t pair_bytes, int unit) {
        vi w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + unit / 2 * pair_bytes));
        return _mm256_and_si256(unit % 2 ? _mm256_srli_epi16(w, 4) : w, _mm256_set1_epi8(0x0f));
    }
    static inline vi operand(int32_t a) { return _mm256_set1_epi32(a); }
    static inline vi product(vi w, vi a) { return _mm256_maddubs_epi16(w, a); }
    static inline void mac(vi& acc, vi w, vi a) { asm("vpaddw %1, %0, %0" : "+x"(acc) : "x"(product(w, a))); }
    static inline vi finish(vi acc, const ActGroup& act) {
        int32_t factors;
        std::memcpy(&factors, act.factor, 4);
        return _mm256_madd_epi16(acc, _mm256_set1_epi32(factors));
    }
};

// 32 integers as bytes, quads of paired halves.
static inline void store_q8(std::byte* out, const vi* q) {
    const vi pairs =
        _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    vi bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));  // 4 of each, then the other 4
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bytes, pairs), 0xd8));
}
// 32 integers, times the factor of their half, as 16 bits, a quad as (0, 2), (1, 3): the two units of DotU8.
static inline void store_words(std::byte* out, const vi* q, const int16_t (&factor)[2]) {
    const vi order =
        _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    for (int i = 0; i < 2; ++i) {
        vi words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]), 0xd8);
        words = _mm256_mullo_epi16(_mm256_shuffle_epi8(words, order), _mm256_set1_epi16(factor[i]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + i, words);
    }
}
static inline void store_q8w(std::byte* out, const vi* q, const ActGroup& act) { store_words(out, q, act.factor); }
// 32 integers as the units of DotU8.
static inline void store_units(std::byte* out, const vi* q) { store_words(out, q, {1, 1}); }

}  // namespace
}  // namespace octavo::ISA
