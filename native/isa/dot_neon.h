// Dot products of the linear kernels for Arm with dotprod; with i8mm and BF16 where OCTAVO_HAS_I8MM and OCTAVO_HAS_DPBF16 are set.
#pragma once

#include "../layout.h"

// Loops over the registers of a tile.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

namespace octavo::ISA {
namespace {  // members of a class in a named namespace would be weak symbols

// 32 registers: 6 x 4 sums, 4 of weights, an operand, a mask.
constexpr int kPanelVectors = 4;  // a panel has 16 columns, a line of float32, so that a tile reads it without gaps
constexpr int kFloatRows = 6, kFloatVectors = 4;
constexpr int kIntRows = 6, kIntVectors = 4;  // integer sums; the float32 ones live in the cache
constexpr int kUnpackTiles = 0;               // never
constexpr Act kActBytes = Act::q8, kActSixteens = Act::q8;
constexpr bool kPairedHalves = false;

// sum += w * a, where `a` is a broadcast: its first lane stands for all. In assembler, as GCC otherwise loads the operands of all rows at
// once, and spills two of the sums.
static inline void accumulate(vf& sum, vf w, vf a) {
    asm volatile("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum) : "w"(w), "w"(vgetq_lane_f32(a, 0)));
}

// A unit is what one operand of the activations, 32 bits, multiplies: here a quad of K. The operand is the first lane of a register, which
// the dot products broadcast themselves.
static inline int8x8_t first_lane(int32_t a) { return vcreate_s8(static_cast<uint32_t>(a)); }

// Bytes of up to 6 bits are the same signed and unsigned.
template <int kBits>
struct Dot {
    static constexpr bool kFactored = false, kTurns = false;
    static constexpr int kUnits = 1;   // per quad
    static constexpr int kSpan = 16;   // values of K between two visits to the float32 sums
    static constexpr int kRun = 4;     // quads between two calls of finish()
    static constexpr int kOffset = 0;  // weight() gives q - kOffset
    static inline float scale(const ActGroup& act, int half) { return act.half_scale[half]; }
    static inline int8x16_t weight(vi quad, int) { return vreinterpretq_s8_s32(quad); }
    static inline int8x8_t operand(int32_t a) { return first_lane(a); }
    static inline vi product(int8x16_t w, int8x8_t a) { return vdotq_lane_s32(zero_i(), w, a, 0); }
    static inline void mac(vi& acc, int8x16_t w, int8x8_t a) { acc = vdotq_lane_s32(acc, w, a, 0); }
    static inline vi finish(vi acc, const ActGroup&) { return acc; }
};

#ifdef OCTAVO_HAS_I8MM
template <>
struct Dot<8> : Dot<6> {
    static inline uint8x16_t weight(vi quad, int) { return vreinterpretq_u8_s32(quad); }
    static inline vi product(uint8x16_t w, int8x8_t a) { return vusdotq_lane_s32(zero_i(), w, a, 0); }
    static inline void mac(vi& acc, uint8x16_t w, int8x8_t a) { acc = vusdotq_lane_s32(acc, w, a, 0); }
};
#else
// sdot takes signed bytes only: q is multiplied as q - 128, which is q with its top bit flipped.
template <>
struct Dot<8> : Dot<6> {
    static constexpr int kOffset = 128;
    static inline int8x16_t weight(vi quad, int) { return vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s32(quad), vdupq_n_u8(0x80))); }
};
#endif

// Two products of bf16, exact in float32, are added up, and then added to the sum; both additions round to odd and flush subnormals.
#ifdef OCTAVO_HAS_DPBF16
static inline void dot_bf16(vf& sum, vi w, int32_t a) {
    sum = vbfdotq_lane_f32(sum, vreinterpretq_bf16_s32(w), vreinterpret_bf16_s8(first_lane(a)), 0);
}
#endif

// 32 integers as the units of an activation row.
static inline void store_q8(std::byte* out, const vi* q) {
    for (int i = 0; i < 4; ++i)
        vst1_s8(reinterpret_cast<int8_t*>(out) + 8 * i, vmovn_s16(vcombine_s16(vmovn_s32(q[2 * i]), vmovn_s32(q[2 * i + 1]))));
}
// 32 integers as an activation row of form `act` has them.
static inline void store_ints(Act, std::byte* out, const vi* q, const ActGroup&) { store_q8(out, q); }
// 32 integers as the units of Dot<8>.
static inline void store_units(std::byte* out, const vi* q) { store_q8(out, q); }

}  // namespace
}  // namespace octavo::ISA
