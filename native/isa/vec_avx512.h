// The vector vocabulary for AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers, masked tails.
#pragma once

#include <immintrin.h>

#include "../types.h"

namespace octavo::ISA {

constexpr int W = 16;

using vf = __m512;
using vi = __m512i;

static inline vf set1(float x) { return _mm512_set1_ps(x); }
static inline vf zero() { return _mm512_setzero_ps(); }
static inline vf load(const float* p) { return _mm512_loadu_ps(p); }
static inline __mmask16 lane_mask(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u); }
static inline vf load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(lane_mask(n), p); }
static inline void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
static inline void store_n(float* p, vf a, int n) { _mm512_mask_storeu_ps(p, lane_mask(n), a); }
static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf abs(vf a) { return _mm512_abs_ps(a); }
static inline vf select_lt(vf a, vf b, vf yes, vf no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes); }

static inline vi set1_i(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi zero_i() { return _mm512_setzero_si512(); }
static inline vi load_i(const int32_t* p) { return _mm512_loadu_si512(p); }
static inline void store_i(int32_t* p, vi a) { _mm512_storeu_si512(p, a); }
static inline vi add_i(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi sub_i(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi mul_i(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
static inline vi or_i(vi a, vi b) { return _mm512_or_si512(a, b); }
// Those bits of each byte that `mask` has, after a shift to the right or, where `right` is negative, to the left.
static inline vi bits_at(vi a, int right, int mask) {
    const auto places = static_cast<unsigned>(right < 0 ? -right : right);
    const vi moved = right > 0 ? _mm512_srli_epi32(a, places) : right < 0 ? _mm512_slli_epi32(a, places) : a;
    return _mm512_and_si512(moved, _mm512_set1_epi32(0x01010101 * mask));
}
// The lower 16 bits of `a` above those of `below`.
static inline vi move_up(vi a, vi below) {
    const vi words = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    return _mm512_mask_shuffle_epi8(below, 0xccccccccccccccccull, a, words);
}
// acc + the dot products of pairs of 16 bits. In assembler, as GCC copies and spills the sums of its own in attention, which then takes a
// quarter longer.
static inline vi add_dot_s16(vi acc, vi a, vi b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}
// Two values to a lane.
static inline vi load_i16(const int16_t* p) { return _mm512_loadu_si512(p); }
static inline vi widen_i8(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
// The lower 16 bits of each lane.
static inline void store_i16(int16_t* p, vi a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a)); }
static inline vf as_floats(vi a) { return _mm512_castsi512_ps(a); }
// a * factor rounded to an integer, half to even, of which the lower 16 bits are right; |a * factor| < 2^22.
static inline vi nearest_low_bits(vf a, vf factor) { return _mm512_castps_si512(fma(a, factor, set1(12582912.0f))); }
static inline vf to_f32(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi to_i32(vf a) { return _mm512_cvtps_epi32(a); }  // round half to even
// The low bits of a float as the exponent of another.
static inline vf low_bits_as_exponent(vf a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23)); }

static inline vf load_bf16(const bf16* p) {
    __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
// bf16 of each lane in the low half of its 32 bits; nearest even, NaN kept. (vcvtneps2bf16 flushes subnormals: not used.)
static inline __m512i round_bf16(vf a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
}
static inline void store_bf16(bf16* p, vf a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(round_bf16(a))); }
static inline vf load_f16(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
static inline void store_f16(f16* p, vf a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

// The order of the tree is part of the definition: halves are folded, widest first (_mm512_reduce_add_ps leaves its order to the compiler).
static inline float reduce_add(vf a) {
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    y = _mm_add_ss(y, _mm_shuffle_ps(y, y, 1));
    return _mm_cvtss_f32(y);
}
static inline float reduce_max(vf a) {
    __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    y = _mm_max_ss(y, _mm_shuffle_ps(y, y, 1));
    return _mm_cvtss_f32(y);
}

}  // namespace octavo::ISA
