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
constexpr Act kActBytes = Act::q8w, kActSixteens = Act::q8h;
constexpr bool kPairedHalves = true;

// Weights of up to 6 bits: sums of 16 bits hold the pairs of products, at most 2 * 127 * q, of a run of quads, and then go into 32 bits. In
// groups of 32 the two of a lane belong to the two halves of the group, and meet as integers, by way of their factors.
template <int kBits>
struct Dot {
    static constexpr bool kSixteens = has_sixteens(kBits);
    static constexpr bool kFactored = kBits == 4, kTurns = false;
    static constexpr int kUnits = 1;                   // per quad
    static constexpr int kSpan = kSixteens ? 16 : 32;  // values of K between two visits to the float32 sums
    static constexpr int kFit = 32767 / (2 * 127 * ((1 << kBits) - 1));
    static constexpr int kRun = kFit >= kSpan / 4 ? kSpan / 4 : kFit;  // quads between two calls of finish()
    static constexpr int kOffset = 0;                                  // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int half) { return kSixteens ? act.half_scale[half] : act.scale; }
    static inline vi weight(vi quad, int) { return quad; }
    static inline vi operand(int32_t a) { return _mm256_set1_epi32(a); }
    static inline vi product(vi w, vi a) { return _mm256_maddubs_epi16(w, a); }
    static inline void mac(vi& acc, vi w, vi a) { asm("vpaddw %1, %0, %0" : "+x"(acc) : "x"(product(w, a))); }
    static inline vi finish(vi acc, const ActGroup& act) {
        int32_t factors = 0x00010001;
        if (!kSixteens) std::memcpy(&factors, act.factor, 4);
        return _mm256_madd_epi16(acc, _mm256_set1_epi32(factors));
    }
    static inline vf finish(vi acc, const ActGroup& act, bool minimum) {
        return as_floats(add_i(set1_i(act.bits[minimum]), finish(acc, act)));
    }
};

// Bytes of 8 bits would saturate vpmaddubsw: the even and the odd ones of a quad are widened, and meet pairs of 16-bit activations, which
// have the factors of their halves in them. A sum of 32 stays below 2^28.
template <>
struct Dot<8> {
    static constexpr bool kFactored = false, kTurns = false;
    static constexpr int kUnits = 2, kSpan = 32, kRun = 8, kOffset = 0;
    static inline float scale(const ActGroup& act, int) { return act.scale; }
    static inline vi weight(vi quad, int unit) {
        return unit ? _mm256_srli_epi16(quad, 8) : _mm256_and_si256(quad, _mm256_set1_epi16(0xff));
    }
    static inline vi operand(int32_t a) { return _mm256_set1_epi32(a); }
    static inline vi product(vi w, vi a) { return _mm256_madd_epi16(w, a); }
    static inline void mac(vi& acc, vi w, vi a) { asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(product(w, a))); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

// 32 integers as bytes, in quads of paired halves or in their order.
static inline void store_bytes(std::byte* out, const vi* q, bool paired) {
    const vi pairs =
        _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    vi bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));  // 4 of each, then the other 4
    bytes = paired ? _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bytes, pairs), 0xd8)
                   : _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}
// 32 integers, times the factor of their half, as 16 bits, a quad as (0, 2), (1, 3): the two units of Dot<8>.
static inline void store_words(std::byte* out, const vi* q, const int16_t (&factor)[2]) {
    const vi order =
        _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    for (int i = 0; i < 2; ++i) {
        vi words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]), 0xd8);
        words = _mm256_mullo_epi16(_mm256_shuffle_epi8(words, order), _mm256_set1_epi16(factor[i]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + i, words);
    }
}
// 32 integers as an activation row of form `act` has them.
static inline void store_ints(Act act, std::byte* out, const vi* q, const ActGroup& group) {
    if (act == Act::q8w) return store_words(out, q, group.factor);
    store_bytes(out, q, act == Act::q8);
}
// 32 integers as the units of Dot<8>.
static inline void store_units(std::byte* out, const vi* q) { store_words(out, q, {1, 1}); }

}  // namespace
}  // namespace octavo::ISA
