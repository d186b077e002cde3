// Narrow types, for attention and linear kernels: the first or the second of each of W pairs of 16-bit floats, and 8-bit types, as float32;
// and the dot product of pairs of bf16, so that the text which AVX-512 BF16 takes runs on any machine.
#pragma once

#define OCTAVO_PAIRED_BF16 1

namespace octavo::ISA {

constexpr bool kFastestAsI16 = false;
constexpr int kSumRegisters = 0;  // none to plan for

static inline vu load_pairs(const uint16_t* p) {
    vu pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return pairs;
}
static inline vf even_bf16(const bf16* p) { return (vf)(load_pairs(p) << 16); }
static inline vf odd_bf16(const bf16* p) { return (vf)(load_pairs(p) & 0xffff0000u); }
__attribute__((noinline)) static vf even_f16(const f16* p) {
    vf out;
    for (int i = 0; i < W; ++i) out[i] = f16_to_f32(p[2 * i]);
    return out;
}
static inline vf odd_f16(const f16* p) { return even_f16(p + 1); }

// 8-bit types, one value a lane.
static inline vf load_i8(const int8_t* p) {
    vf out;
    for (int i = 0; i < W; ++i) out[i] = p[i];
    return out;
}
// Nibbles of bytes, the low or the high ones.
static inline vf load_u4(const uint8_t* p, bool high) {
    vf out;
    for (int i = 0; i < W; ++i) out[i] = static_cast<float>(high ? p[i] >> 4 : p[i] & 15);
    return out;
}
__attribute__((noinline)) static vf load_e5m2(const uint8_t* p) {
    vf out;
    for (int i = 0; i < W; ++i) out[i] = e5m2_to_f32(p[i]);
    return out;
}
__attribute__((noinline)) static vf load_e4m3(const uint8_t* p) {  // in units of kE4M3Unit
    vf out;
    for (int i = 0; i < W; ++i) out[i] = f16_to_f32(e4m3_to_f16(p[i]));
    return out;
}

using pairs_bf16 = vu;
static inline pairs_bf16 broadcast_pair(const bf16* p) {
    uint32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return pair - vu{};
}
static inline vf dot_pairs(vf sum, pairs_bf16 a, pairs_bf16 b) {
    sum = fma((vf)(a << 16), (vf)(b << 16), sum);
    return fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), sum);
}
static inline pairs_bf16 join_pairs(vf even, vf odd) { return (vu)even >> 16 | (vu)odd; }  // of values that bf16 holds
static inline void store_pairs(bf16* p, pairs_bf16 a) { std::memcpy(p, &a, sizeof a); }

}  // namespace octavo::ISA
