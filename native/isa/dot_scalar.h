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
constexpr Act kActU8 = Act::q8;
constexpr bool kPairedHalves = false;

// Lane i: acc + the dot product of the four unsigned bytes of w and the four signed ones of a.
__attribute__((noinline)) static vi dot_u8s8(vi acc, vi w, int32_t a) {
    for (int j = 0; j < 4; ++j) acc += (vi)(((vu)w >> (8 * j)) & 0xffu) * static_cast<int32_t>(static_cast<int8_t>(a >> (8 * j)));
    return acc;
}

// sum += w * a
static inline void accumulate(vf& sum, vf w, vf a) { sum = fma(w, a, sum); }

// A unit is what one operand of the activations, 32 bits, multiplies: here a quad of K.
struct DotU8 {
    using Acc = vi;
    static constexpr int kUnits = 1;   // per quad
    static constexpr int kSpan = 16;   // values of K between two visits to the float32 sums
    static constexpr int kOffset = 0;  // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int half) { return act.half_scale[half]; }
    static inline vi weight(const std::byte* p, int64_t quad_bytes, int unit) {
        return load_i(reinterpret_cast<const int32_t*>(p + unit * quad_bytes));
    }
    static inline int32_t operand(int32_t a) { return a; }
    static inline vi product(vi w, int32_t a) { return dot_u8s8(zero_i(), w, a); }
    static inline void mac(vi& acc, vi w, int32_t a) { acc = dot_u8s8(acc, w, a); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

struct DotU4 : DotU8 {
    static inline vi weight(const std::byte* p, int64_t pair_bytes, int unit) {
        vu w = (vu)load_i(reinterpret_cast<const int32_t*>(p + unit / 2 * pair_bytes));
        return (vi)((w >> (unit % 2 * 4)) & 0x0f0f0f0fu);
    }
};

// 32 integers as the units of an activation row.
static inline void store_q8(std::byte* out, const vi* q) {
    for (int i = 0; i < 32; ++i) out[i] = static_cast<std::byte>(q[i / W][i % W]);
}
static inline void store_q8w(std::byte*, const vi*, const ActGroup&) {}
// 32 integers as the units of DotU8.
static inline void store_units(std::byte* out, const vi* q) { store_q8(out, q); }

}  // namespace
}  // namespace octavo::ISA
