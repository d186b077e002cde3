// The vector vocabulary in plain C++: 16 lanes, so that the kernels take the same paths as with AVX-512, on any machine.
// fma() is two roundings here: a software fused multiply-add is a hundred times slower, and levels need not agree with one another.
#pragma once

#include <cmath>

#include "../types.h"

namespace octavo::ISA {

constexpr int W = 16;

struct vf {
    float v[W];
};
struct vi {
    int32_t v[W];
};

#define OCTAVO_LANES(expression)                   \
    {                                              \
        decltype(r) out;                           \
        for (int i = 0; i < W; ++i) out.v[i] = (expression); \
        return out;                                \
    }

static inline vf set1(float x) { vf r; OCTAVO_LANES(x) }
static inline vf zero() { return set1(0.0f); }
static inline vf load(const float* p) { vf r; OCTAVO_LANES(p[i]) }
static inline vf load_n(const float* p, int n) { vf r; OCTAVO_LANES(i < n ? p[i] : 0.0f) }
static inline void store(float* p, vf a) { for (int i = 0; i < W; ++i) p[i] = a.v[i]; }
static inline void store_n(float* p, vf a, int n) { for (int i = 0; i < W && i < n; ++i) p[i] = a.v[i]; }
static inline vf add(vf a, vf b) { vf r; OCTAVO_LANES(a.v[i] + b.v[i]) }
static inline vf sub(vf a, vf b) { vf r; OCTAVO_LANES(a.v[i] - b.v[i]) }
static inline vf mul(vf a, vf b) { vf r; OCTAVO_LANES(a.v[i] * b.v[i]) }
static inline vf div(vf a, vf b) { vf r; OCTAVO_LANES(a.v[i] / b.v[i]) }
static inline vf fma(vf a, vf b, vf c) { vf r; OCTAVO_LANES(a.v[i] * b.v[i] + c.v[i]) }
static inline vf max(vf a, vf b) { vf r; OCTAVO_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
static inline vf min(vf a, vf b) { vf r; OCTAVO_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }
static inline vf abs(vf a) { vf r; OCTAVO_LANES(std::fabs(a.v[i])) }
static inline vf select_lt(vf a, vf b, vf yes, vf no) { vf r; OCTAVO_LANES(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]) }

static inline vi set1_i(int32_t x) { vi r; OCTAVO_LANES(x) }
static inline vi zero_i() { return set1_i(0); }
static inline vi load_i(const int32_t* p) { vi r; OCTAVO_LANES(p[i]) }
static inline void store_i(int32_t* p, vi a) { for (int i = 0; i < W; ++i) p[i] = a.v[i]; }
static inline vi add_i(vi a, vi b) { vi r; OCTAVO_LANES(a.v[i] + b.v[i]) }
static inline vi sub_i(vi a, vi b) { vi r; OCTAVO_LANES(a.v[i] - b.v[i]) }
static inline vi mul_i(vi a, vi b) { vi r; OCTAVO_LANES(a.v[i] * b.v[i]) }
static inline vf to_f32(vi a) { vf r; OCTAVO_LANES(static_cast<float>(a.v[i])) }
static inline vi to_i32(vf a) { vi r; OCTAVO_LANES(static_cast<int32_t>(std::nearbyint(a.v[i]))) }  // round half to even
// x * 2^n for n in [-126, 127]
static inline vf scale_exp(vf x, vi n) { vf r; OCTAVO_LANES(x.v[i] * bits_to_f32(static_cast<uint32_t>(n.v[i] + 127) << 23)) }

static inline vf load_bf16(const bf16* p) { vf r; OCTAVO_LANES(bf16_to_f32(p[i])) }
static inline void store_bf16(bf16* p, vf a) { for (int i = 0; i < W; ++i) p[i] = f32_to_bf16(a.v[i]); }
static inline vf load_f16(const f16* p) { vf r; OCTAVO_LANES(f16_to_f32(p[i])) }
static inline void store_f16(f16* p, vf a) { for (int i = 0; i < W; ++i) p[i] = f32_to_f16(a.v[i]); }

// The order of the tree is part of the definition: halves are folded, widest first.
static inline float reduce_add(vf a) {
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
static inline float reduce_max(vf a) {
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] = a.v[i + half] > a.v[i] ? a.v[i + half] : a.v[i];
    return a.v[0];
}

// W pairs of bf16: lane i holds (p[2i], p[2i+1]). split() gives the even and the odd elements as float32.
static inline void split_bf16(const bf16* p, vf& even, vf& odd) {
    for (int i = 0; i < W; ++i) {
        even.v[i] = bf16_to_f32(p[2 * i]);
        odd.v[i] = bf16_to_f32(p[2 * i + 1]);
    }
}
static inline void split_f16(const f16* p, vf& even, vf& odd) {
    for (int i = 0; i < W; ++i) {
        even.v[i] = f16_to_f32(p[2 * i]);
        odd.v[i] = f16_to_f32(p[2 * i + 1]);
    }
}

#undef OCTAVO_LANES

}  // namespace octavo::ISA
