// The vector vocabulary for Arm's Advanced SIMD (AArch64): 4 lanes, 32 registers.
#pragma once

#include <arm_neon.h>

#include "../types.h"

namespace octavo::ISA {

constexpr int W = 4;

using vf = float32x4_t;
using vi = int32x4_t;

static inline vf set1(float x) { return vdupq_n_f32(x); }
static inline vf zero() { return vdupq_n_f32(0.0f); }
static inline vf load(const float* p) { return vld1q_f32(p); }
// There are no masked loads: a tail is read and written in halves.
static inline vf load_n(const float* p, int n) {
    if (n >= W) return vld1q_f32(p);
    float32x2_t low = vdup_n_f32(0.0f), high = low;
    if (n >= 2) low = vld1_f32(p);
    if (n == 1) low = vld1_lane_f32(p, low, 0);
    if (n == 3) high = vld1_lane_f32(p + 2, high, 0);
    return vcombine_f32(low, high);
}
static inline void store(float* p, vf a) { vst1q_f32(p, a); }
static inline void store_n(float* p, vf a, int n) {
    if (n >= W) return vst1q_f32(p, a);
    if (n >= 2) vst1_f32(p, vget_low_f32(a));
    if (n == 1) vst1q_lane_f32(p, a, 0);
    if (n == 3) vst1q_lane_f32(p + 2, a, 2);
}
static inline vf add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
// b where either is a NaN, as the kernels expect; fmax and fmin would give the NaN.
static inline vf max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf abs(vf a) { return vabsq_f32(a); }
static inline vf select_lt(vf a, vf b, vf yes, vf no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }

static inline vi set1_i(int32_t x) { return vdupq_n_s32(x); }
static inline vi zero_i() { return vdupq_n_s32(0); }
static inline vi load_i(const int32_t* p) { return vld1q_s32(p); }
static inline void store_i(int32_t* p, vi a) { vst1q_s32(p, a); }
static inline vi add_i(vi a, vi b) { return vaddq_s32(a, b); }
static inline vi sub_i(vi a, vi b) { return vsubq_s32(a, b); }
static inline vi mul_i(vi a, vi b) { return vmulq_s32(a, b); }
static inline vi or_i(vi a, vi b) { return vorrq_s32(a, b); }
// Those bits of each byte that `mask` has, after a shift to the right or, where `right` is negative, to the left.
static inline vi bits_at(vi a, int right, int mask) {
    const uint8x16_t bytes = vreinterpretq_u8_s32(a), moved = right > 0 ? bytes >> right : right < 0 ? bytes << -right : bytes;
    return vreinterpretq_s32_u8(vandq_u8(moved, vdupq_n_u8(static_cast<uint8_t>(mask))));
}
// acc + the dot products of pairs of 16 bits.
static inline vi add_dot_s16(vi acc, vi a, vi b) {
    const int16x8_t left = vreinterpretq_s16_s32(a), right = vreinterpretq_s16_s32(b);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(left), vget_low_s16(right)), vmull_high_s16(left, right)));
}
// Two values to a lane.
static inline vi load_i16(const int16_t* p) { return vreinterpretq_s32_s16(vld1q_s16(p)); }
static inline vi widen_i8(const int8_t* p) { return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p))); }
// The lower 16 bits of each lane.
static inline void store_i16(int16_t* p, vi a) { vst1_s16(p, vmovn_s32(a)); }
// a * factor rounded to an integer, half to even, of which the lower 16 bits are right; |a * factor| < 2^22.
static inline vi nearest_low_bits(vf a, vf factor) { return vreinterpretq_s32_f32(fma(a, factor, set1(12582912.0f))); }
static inline vf to_f32(vi a) { return vcvtq_f32_s32(a); }
static inline vi to_i32(vf a) { return vcvtnq_s32_f32(a); }  // round half to even
// The low bits of a float as the exponent of another.
static inline vf low_bits_as_exponent(vf a) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(a), 23)); }

static inline vf load_bf16(const bf16* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
// Nearest even, NaN kept, with integers: bfcvtn is not in every level, and a subnormal is to stay one.
static inline void store_bf16(bf16* p, vf a) {
    uint32x4_t bits = vreinterpretq_u32_f32(a), high = vshrq_n_u32(bits, 16);
    uint32x4_t half = vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, half), 16), quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet)));
}
static inline vf load_f16(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline void store_f16(f16* p, vf a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }

// The order of the tree is part of the definition: halves are folded, widest first.
static inline float reduce_add(vf a) {
    float32x2_t x = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(vpadd_f32(x, x), 0);
}
static inline float reduce_max(vf a) { return vmaxvq_f32(a); }

}  // namespace octavo::ISA
