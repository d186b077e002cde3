// Pairs of 16-bit floats, for attention and linear kernels: the first or the second of each of W pairs, as float32; with BF16, their dot
// product.
#pragma once

namespace octavo::ISA {

constexpr int kSumRegisters = 20;  // of 32, where there is a choice: keys and broadcasts need theirs

static inline uint32x4_t bits_of_pairs(const uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
static inline vf even_bf16(const bf16* p) { return vreinterpretq_f32_u32(vshlq_n_u32(bits_of_pairs(p), 16)); }
static inline vf odd_bf16(const bf16* p) { return vreinterpretq_f32_u32(vandq_u32(bits_of_pairs(p), vdupq_n_u32(0xffff0000u))); }
static inline vf even_f16(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bits_of_pairs(p)))); }
static inline vf odd_f16(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(bits_of_pairs(p), 16))); }

#if OCTAVO_HAS_DPBF16
#define OCTAVO_PAIRED_BF16 1
using pairs_bf16 = bfloat16x8_t;
static inline pairs_bf16 load_pairs(const bf16* p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }
static inline pairs_bf16 broadcast_pair(const bf16* p) {
    uint32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
}
static inline vf dot_pairs(vf sum, pairs_bf16 a, pairs_bf16 b) { return vbfdotq_f32(sum, a, b); }
#endif

}  // namespace octavo::ISA
