// The vector vocabulary for AVX2 with FMA and F16C: 8 lanes, 16 registers.
#pragma once

#include <immintrin.h>

#include "../types.h"

namespace octavo::ISA {

constexpr int W = 8;

using vf = __m256;
using vi = __m256i;

static inline vf set1(float x) { return _mm256_set1_ps(x); }
static inline vf zero() { return _mm256_setzero_ps(); }
static inline vf load(const float* p) { return _mm256_loadu_ps(p); }
static inline __m256i lane_mask(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
static inline vf load_n(const float* p, int n) { return _mm256_maskload_ps(p, lane_mask(n)); }
static inline void store(float* p, vf a) { _mm256_storeu_ps(p, a); }
static inline void store_n(float* p, vf a, int n) { _mm256_maskstore_ps(p, lane_mask(n), a); }
static inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf select_lt(vf a, vf b, vf yes, vf no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

static inline vi set1_i(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi zero_i() { return _mm256_setzero_si256(); }
static inline vi load_i(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline void store_i(int32_t* p, vi a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
static inline vi add_i(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi sub_i(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi mul_i(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
static inline vi or_i(vi a, vi b) { return _mm256_or_si256(a, b); }
// Those bits of each byte that `mask` has, after a shift to the right or, where `right` is negative, to the left.
static inline vi bits_at(vi a, int right, int mask) {
    const vi moved = right > 0 ? _mm256_srli_epi32(a, right) : right < 0 ? _mm256_slli_epi32(a, -right) : a;
    return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask)));
}
// The lower 16 bits of `a` above those of `below`, which are all that it has.
static inline vi move_up(vi a, vi below) { return _mm256_or_si256(_mm256_slli_epi32(a, 16), below); }
// acc + the dot products of pairs of 16 bits.
static inline vi add_dot_s16(vi acc, vi a, vi b) {
#ifdef __AVXVNNI__
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));  // as on AVX-512
    return acc;
#else
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
#endif
}
// Two values to a lane.
static inline vi load_i16(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline vi widen_i8(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// The lower 16 bits of each lane.
static inline void store_i16(int16_t* p, vi a) {
    const vi low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
static inline vf as_floats(vi a) { return _mm256_castsi256_ps(a); }
// a * factor rounded to an integer, half to even, of which the lower 16 bits are right; |a * factor| < 2^22.
static inline vi nearest_low_bits(vf a, vf factor) { return _mm256_castps_si256(fma(a, factor, set1(12582912.0f))); }
static inline vf to_f32(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vi to_i32(vf a) { return _mm256_cvtps_epi32(a); }  // round half to even
// The low bits of a float as the exponent of another.
static inline vf low_bits_as_exponent(vf a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23)); }

static inline vf load_bf16(const bf16* p) {
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
// bf16 of each lane in the low half of its 32 bits; nearest even, NaN kept.
static inline __m256i round_bf16(vf a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}
static inline void store_bf16(bf16* p, vf a) {
    __m256i r = round_bf16(a);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
static inline vf load_f16(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
static inline void store_f16(f16* p, vf a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

// The order of the tree is part of the definition: halves are folded, widest first.
static inline float reduce_add(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    x = _mm_add_ss(x, _mm_shuffle_ps(x, x, 1));
    return _mm_cvtss_f32(x);
}
static inline float reduce_max(vf a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    x = _mm_max_ss(x, _mm_shuffle_ps(x, x, 1));
    return _mm_cvtss_f32(x);
}

}  // namespace octavo::ISA
