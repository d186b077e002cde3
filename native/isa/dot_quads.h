// Dot products of integers by quads of bytes, the weights' unsigned, the activations' signed: vpdpbusd, and what the scalar level does for
// it. A level gives spread(a), which is what dot_u8s8(acc, w, a) takes of a quad of activations, and store_q8().
#pragma once

#include "../layout.h"

namespace octavo::ISA {
namespace {  // members of a class in a named namespace would be weak symbols

constexpr Act kActBytes = Act::q8, kActSixteens = Act::q8;
constexpr bool kPairedHalves = false;

using Quad = decltype(spread(0));

// A unit is what one operand of the activations, 32 bits, multiplies: here a quad of K.
template <int kBits>
struct Dot {
    static constexpr bool kFactored = false;  // finish() applies the factors of the halves
    static constexpr bool kTurns = false;     // the upper half comes first, from start(), and then turn()
    static constexpr int kUnits = 1;          // per quad
    static constexpr int kSpan = 16;          // values of K between two visits to the float32 sums
    static constexpr int kRun = 4;            // quads between two calls of finish()
    static constexpr int kOffset = 0;         // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int half) { return act.half_scale[half]; }
    static inline vi weight(vi quad, int) { return quad; }
    static inline Quad operand(int32_t a) { return spread(a); }
    static inline vi product(vi w, Quad a) { return dot_u8s8(zero_i(), w, a); }
    static inline void mac(vi& acc, vi w, Quad a) { acc = dot_u8s8(acc, w, a); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

// 16 products of 4-bit weights less 8 fit 15 bits and a sign: those of the upper half of the group move to the upper 16 bits of their
// lanes, those of the lower one come below, begun so that they are never negative. One dot product of pairs then applies the factors of
// both and adds what makes a float of their sum, and what undoes the beginnings.
template <>
struct Dot<4> : Dot<8> {
    static constexpr bool kFactored = true, kTurns = true;
    static constexpr int kSpan = 32, kRun = 8;
    static inline vi start(const ActGroup& act) { return set1_i(act.start[1]); }
    static inline vi turn(vi acc, const ActGroup& act) { return move_up(acc, set1_i(act.start[0])); }
    static inline vf finish(vi acc, const ActGroup& act, bool minimum) {
        int32_t factors;
        std::memcpy(&factors, act.factor, 4);
        return as_floats(add_dot_s16(set1_i(act.bits[minimum]), acc, set1_i(factors)));
    }
};

// 32 integers as an activation row of form `act` has them.
static inline void store_ints(Act, std::byte* out, const vi* q, const ActGroup&) { store_q8(out, q); }
// 32 integers as the units of Dot<8>.
static inline void store_units(std::byte* out, const vi* q) { store_q8(out, q); }

}  // namespace
}  // namespace octavo::ISA
