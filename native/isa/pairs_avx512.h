// Pairs of 16-bit floats, for attention and linear kernels: the first or the second of each of W pairs, as float32; with BF16, their dot
// product.
#pragma once

namespace octavo::ISA {

constexpr int kSumRegisters = 24;  // of 32

static inline vf even_bf16(const bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
static inline vf odd_bf16(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
static inline vf even_f16(const f16* p) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(p))); }
static inline vf odd_f16(const f16* p) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(p), 16))); }

#if OCTAVO_HAS_DPBF16
#define OCTAVO_PAIRED_BF16 1
using pairs_bf16 = __m512bh;
static inline pairs_bf16 load_pairs(const bf16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
static inline pairs_bf16 broadcast_pair(const bf16* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}
static inline vf dot_pairs(vf sum, pairs_bf16 a, pairs_bf16 b) { return _mm512_dpbf16_ps(sum, a, b); }
#endif

}  // namespace octavo::ISA
