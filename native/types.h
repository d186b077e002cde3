// Scalar types shared by every part of the native code. Everything here is static or trivial: ISA files include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo {

using bf16 = uint16_t;  // the upper half of a float32
using f16 = uint16_t;   // IEEE binary16

static inline float bits_to_f32(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t f32_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static inline float bf16_to_f32(bf16 value) { return bits_to_f32(static_cast<uint32_t>(value) << 16); }

// Round to nearest even; NaN stays NaN (a carry must not turn its payload into infinity).
static inline bf16 f32_to_bf16(float value) {
    uint32_t bits = f32_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40u);
    return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float f16_to_f32(f16 value) {
    uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu;
    uint32_t mantissa = value & 0x3ffu;
    if (exponent == 31) return bits_to_f32(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float32
        float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return bits_to_f32(sign | f32_to_bits(magnitude));
    }
    return bits_to_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Round to nearest even, overflow to infinity, gradual underflow.
static inline f16 f32_to_f16(float value) {
    uint32_t bits = f32_to_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<f16>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<f16>(sign | 0x7c00u);  // 65520 and above
    if (magnitude < 0x38800000u) {                                          // below 2^-14: subnormal
        float scaled = bits_to_f32(magnitude) + 0.5f;                       // 0.5 has an ulp of 2^-24: the addition rounds for us
        return static_cast<f16>(sign | (f32_to_bits(scaled) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<f16>(sign | ((rounded - 0x38000000u) >> 13));
}

// To an 8-bit float (E4M3FN, E5M2): nearest even, and the largest finite value for what lies beyond it, infinity too. NaN, of either
// sign, is 0xff and nothing else. Without branches, so that a loop over it becomes vectors.
template <int kMantissa, int kBias, uint32_t kMost>
static inline uint8_t f32_to_f8(float value) {
    constexpr int kShift = 23 - kMantissa;
    constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23;  // a float whose ulp is that of the subnormals
    const uint32_t bits = f32_to_bits(value), magnitude = bits & 0x7fffffffu;
    const uint32_t subnormal = f32_to_bits(bits_to_f32(magnitude) + bits_to_f32(kMagic)) - kMagic;
    const uint32_t half = (1u << (kShift - 1)) - 1u + (magnitude >> kShift & 1u);
    const uint32_t normal = ((magnitude + half) >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
    const uint32_t rounded = magnitude < kLeastNormal ? subnormal : normal;
    const uint32_t finite = rounded < kMost ? rounded : kMost;
    return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0xffu : (bits >> 24 & 0x80u) | finite);
}
static inline uint8_t f32_to_e4m3(float value) { return f32_to_f8<3, 7, 0x7e>(value); }   // up to 448
static inline uint8_t f32_to_e5m2(float value) { return f32_to_f8<2, 15, 0x7b>(value); }  // up to 57344

// The upper half of a float16.
static inline float e5m2_to_f32(uint8_t value) { return f16_to_f32(static_cast<f16>(value << 8)); }
// Moved to the fields of a float16 it reads as 1 / kE4M3Unit of itself, subnormals too.
constexpr float kE4M3Unit = 256.0f;
static inline f16 e4m3_to_f16(uint8_t value) {
    return static_cast<f16>(value == 0xffu ? 0x7e00u : (value & 0x80u) << 8 | (value & 0x7fu) << 7);
}
static inline float e4m3_to_f32(uint8_t value) { return kE4M3Unit * f16_to_f32(e4m3_to_f16(value)); }

}  // namespace octavo
