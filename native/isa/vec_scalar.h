// The vector vocabulary in plain C++: 16 lanes, so that the kernels take the same paths as with AVX-512, on any machine.
// fma() is two roundings here: a software fused multiply-add is a hundred times slower, and levels need not agree with one another.
#pragma once

#include "../types.h"

namespace octavo::ISA {

constexpr int W = 16;

// The compiler's generic vectors, which it maps to whatever the machine has; loops over arrays would take minutes to compile.
typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));

#define OCTAVO_LANES(type, expression)                     \
    {                                                      \
        type out;                                          \
        for (int i = 0; i < W; ++i) out[i] = (expression); \
        return out;                                        \
    }

static inline vf set1(float x) { return x - vf{}; }
static inline vf zero() { return vf{}; }
static inline vf load(const float* p) {
    vf out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
static inline vf load_n(const float* p, int n) OCTAVO_LANES(vf, i < n ? p[i] : 0.0f) static inline void store(float* p, vf a) {
    std::memcpy(p, &a, sizeof a);
}
static inline void store_n(float* p, vf a, int n) {
    for (int i = 0; i < W && i < n; ++i) p[i] = a[i];
}
static inline vf add(vf a, vf b) { return a + b; }
static inline vf sub(vf a, vf b) { return a - b; }
static inline vf mul(vf a, vf b) { return a * b; }
static inline vf div(vf a, vf b) { return a / b; }
static inline vf fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf max(vf a, vf b) { return a > b ? a : b; }
static inline vf min(vf a, vf b) { return a < b ? a : b; }
static inline vf abs(vf a) { return (vf)((vu)a & 0x7fffffffu); }
static inline vf select_lt(vf a, vf b, vf yes, vf no) { return a < b ? yes : no; }

static inline vi set1_i(int32_t x) { return x - vi{}; }
static inline vi zero_i() { return vi{}; }
static inline vi load_i(const int32_t* p) {
    vi out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
static inline void store_i(int32_t* p, vi a) { std::memcpy(p, &a, sizeof a); }
static inline vi add_i(vi a, vi b) { return a + b; }
static inline vi sub_i(vi a, vi b) { return a - b; }
static inline vi mul_i(vi a, vi b) { return a * b; }
static inline vi or_i(vi a, vi b) { return a | b; }
// Those bits of each byte that `mask` has, after a shift to the right or, where `right` is negative, to the left.
static inline vi bits_at(vi a, int right, int mask) {
    const vu moved = right > 0 ? (vu)a >> right : right < 0 ? (vu)a << -right : (vu)a;
    return (vi)(moved & 0x01010101u * static_cast<uint32_t>(mask));
}
// The lower 16 bits of `a` above those of `below`, which are all that it has.
static inline vi move_up(vi a, vi below) { return (vi)((vu)a << 16) | below; }
// acc + the dot products of pairs of 16 bits.
static inline vi add_dot_s16(vi acc, vi a, vi b) {
    return acc + (move_up(a, vi{}) >> 16) * (move_up(b, vi{}) >> 16) + (a >> 16) * (b >> 16);
}
// Two values to a lane.
static inline vi load_i16(const int16_t* p) {
    vi out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
static inline vi widen_i8(const int8_t* p) {
    int16_t wide[2 * W];
    for (int i = 0; i < 2 * W; ++i) wide[i] = p[i];
    return load_i16(wide);
}
// The lower 16 bits of each lane.
static inline void store_i16(int16_t* p, vi a) {
    for (int i = 0; i < W; ++i) p[i] = static_cast<int16_t>(a[i]);
}
static inline vf as_floats(vi a) { return (vf)a; }
// a * factor rounded to an integer, half to even, of which the lower 16 bits are right; |a * factor| < 2^22.
static inline vi nearest_low_bits(vf a, vf factor) { return (vi)fma(a, factor, set1(12582912.0f)); }
static inline vf to_f32(vi a) { return __builtin_convertvector(a, vf); }
// Round half to even, for |a| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits.
static inline vi to_i32(vf a) { return (vi)(a + 12582912.0f) - 0x4b400000; }
// The low bits of a float as the exponent of another.
static inline vf low_bits_as_exponent(vf a) { return (vf)((vu)a << 23); }

static inline vf load_bf16(const bf16* p) {
    vh half;
    std::memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vi) << 16);
}
static inline void store_bf16(bf16* p, vf a) {
    vu bits = (vu)a;
    vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    vh half = __builtin_convertvector(a == a ? rounded : (bits >> 16) | 0x40u, vh);
    std::memcpy(p, &half, sizeof half);
}
__attribute__((noinline)) static vf load_f16(const f16* p) OCTAVO_LANES(vf, f16_to_f32(p[i]))
    __attribute__((noinline)) static void store_f16(f16* p, vf a) {
    for (int i = 0; i < W; ++i) p[i] = f32_to_f16(a[i]);
}

// The order of the tree is part of the definition: halves are folded, widest first.
static inline float reduce_add(vf a) {
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a[i] += a[i + half];
    return a[0];
}
static inline float reduce_max(vf a) {
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a[i] = a[i + half] > a[i] ? a[i + half] : a[i];
    return a[0];
}

#undef OCTAVO_LANES

}  // namespace octavo::ISA
