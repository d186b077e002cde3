// Pairs of 16-bit floats for the attention kernels: the first or the second of each of W pairs, as float32.
#pragma once

namespace octavo::ISA {

constexpr int kRegisters = 0;  // none to plan for

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

}  // namespace octavo::ISA
