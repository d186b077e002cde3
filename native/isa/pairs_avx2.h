// Narrow types, for attention and linear kernels: the first or the second of each of W pairs of 16-bit floats, and 8-bit types, as float32.
#pragma once

namespace octavo::ISA {

constexpr bool kFastestAsI16 = true;
constexpr int kSumRegisters = 12;  // of 16; keys may be operands in memory

static inline vf even_bf16(const bf16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
// The mask stays in memory: linear tiles have no register left for it.
alignas(32) static const uint32_t kOddMask[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
static inline vf odd_bf16(const bf16* p) {
    vi odd;
    asm("vpand %2, %1, %0" : "=x"(odd) : "x"(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), "m"(kOddMask));
    return _mm256_castsi256_ps(odd);
}
// A byte shuffle gathers the wanted halves in the low half of each lane, a permutation joins the lanes.
static inline vf halves_f16(const f16* p, __m256i order) {
    __m256i sorted = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), order);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(sorted, 0xd8)));
}
static inline vf even_f16(const f16* p) {
    return halves_f16(p, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
}
static inline vf odd_f16(const f16* p) {
    return halves_f16(p, _mm256_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1));
}

// 8-bit types, one value a lane.
static inline __m128i load_lanes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
static inline vf load_i8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_lanes(p))); }
// Nibbles of bytes, the low or the high ones.
static inline vf load_u4(const uint8_t* p, bool high) {
    return _mm256_cvtepi32_ps(bits_at(_mm256_cvtepu8_epi32(load_lanes(p)), high ? 4 : 0, 0x0f));
}
static inline vf load_e5m2(const uint8_t* p) { return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), load_lanes(p))); }
static inline vf load_e4m3(const uint8_t* p) {  // in units of kE4M3Unit
    const __m128i word = _mm_cvtepi8_epi16(load_lanes(p)), nan = _mm_cmpeq_epi16(word, _mm_set1_epi16(-1));
    const __m128i half = _mm_and_si128(_mm_slli_epi16(word, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
    return _mm256_cvtph_ps(_mm_or_si128(half, nan));
}

}  // namespace octavo::ISA
