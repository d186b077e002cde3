// Narrow types, for attention and linear kernels: the first or the second of each of W pairs of 16-bit floats, and 8-bit types, as float32;
// with BF16, the dot product of its pairs.
#pragma once

namespace octavo::ISA {

constexpr bool kFastestAsI16 = true;  // vdpbf16ps is no faster than vpdpwssd
constexpr int kSumRegisters = 24;     // of 32

static inline vf even_bf16(const bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
static inline vf odd_bf16(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
static inline vf even_f16(const f16* p) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(p))); }
static inline vf odd_f16(const f16* p) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(p), 16))); }

// 8-bit types, one value a lane.
static inline __m128i load_lanes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
static inline vf load_i8(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_lanes(p))); }
// Nibbles of bytes, the low or the high ones.
static inline vf load_u4(const uint8_t* p, bool high) {
    return _mm512_cvtepi32_ps(bits_at(_mm512_cvtepu8_epi32(load_lanes(p)), high ? 4 : 0, 0x0f));
}
static inline vf load_e5m2(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_lanes(p)), 8)); }
static inline vf load_e4m3(const uint8_t* p) {  // in units of kE4M3Unit
    const __m256i word = _mm256_cvtepi8_epi16(load_lanes(p));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(word, _mm256_set1_epi16(-1));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(word, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
    return _mm512_cvtph_ps(_mm256_mask_blend_epi16(nan, half, _mm256_set1_epi16(0x7e00)));
}

// Where there is AMX, two multiply-adds a cycle outrun vdpbf16ps: dispatch.cpp, half_rate_bf16.
#if OCTAVO_HAS_DPBF16 && !OCTAVO_HAS_AMX
#define OCTAVO_PAIRED_BF16 1
using pairs_bf16 = __m512bh;
static inline pairs_bf16 load_pairs(const bf16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
static inline pairs_bf16 broadcast_pair(const bf16* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}
static inline vf dot_pairs(vf sum, pairs_bf16 a, pairs_bf16 b) { return _mm512_dpbf16_ps(sum, a, b); }
static inline pairs_bf16 join_pairs(vf even, vf odd) {  // of values that bf16 holds
    return reinterpret_cast<__m512bh>(_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd)));
}
static inline void store_pairs(bf16* p, pairs_bf16 a) { _mm512_storeu_si512(p, reinterpret_cast<__m512i>(a)); }
#endif

}  // namespace octavo::ISA
