// Narrow types, for attention and linear kernels: the first or the second of each of W pairs of 16-bit floats, and 8-bit types, as float32;
// with BF16, the dot product of its pairs.
#pragma once

namespace octavo::ISA {

constexpr bool kFastestAsI16 = false;  // a dot product of pairs takes four instructions
constexpr int kSumRegisters = 20;      // of 32, where there is a choice: keys and broadcasts need theirs

static inline uint32x4_t bits_of_pairs(const uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
static inline vf even_bf16(const bf16* p) { return vreinterpretq_f32_u32(vshlq_n_u32(bits_of_pairs(p), 16)); }
static inline vf odd_bf16(const bf16* p) { return vreinterpretq_f32_u32(vandq_u32(bits_of_pairs(p), vdupq_n_u32(0xffff0000u))); }
static inline vf even_f16(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bits_of_pairs(p)))); }
static inline vf odd_f16(const f16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(bits_of_pairs(p), 16))); }

// 8-bit types, one value a lane.
static inline int16x4_t signed_words(const void* p) {
    uint32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return vget_low_s16(vmovl_s8(vcreate_s8(bytes)));
}
static inline vf load_i8(const int8_t* p) { return vcvtq_f32_s32(vmovl_s16(signed_words(p))); }
// Nibbles of bytes, the low or the high ones.
static inline vf load_u4(const uint8_t* p, bool high) {
    return vcvtq_f32_s32(bits_at(vmovl_s16(signed_words(p)), high ? 4 : 0, 0x0f) & vdupq_n_s32(0x0f));
}
static inline vf load_e5m2(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_s16(vshl_n_s16(signed_words(p), 8))); }
static inline vf load_e4m3(const uint8_t* p) {  // in units of kE4M3Unit
    const uint16x4_t word = vreinterpret_u16_s16(signed_words(p)), nan = vceq_u16(word, vdup_n_u16(0xffff));
    const uint16x4_t half = vand_u16(vshl_n_u16(word, 7), vdup_n_u16(0xbf80));
    return vcvt_f32_f16(vreinterpret_f16_u16(vbsl_u16(nan, vdup_n_u16(0x7e00), half)));
}

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
static inline pairs_bf16 join_pairs(vf even, vf odd) {  // of values that bf16 holds
    return vreinterpretq_bf16_u32(vorrq_u32(vshrq_n_u32(vreinterpretq_u32_f32(even), 16), vreinterpretq_u32_f32(odd)));
}
static inline void store_pairs(bf16* p, pairs_bf16 a) { vst1q_u16(p, vreinterpretq_u16_bf16(a)); }
#endif

}  // namespace octavo::ISA
