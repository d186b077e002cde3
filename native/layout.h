// The bytes of a packed weight: what pack() writes and the linear kernels read. ISA files include it: nothing here is external.
//
// A panel holds `panel` columns, zero where n ends, and is a sequence of steps along K:
//   f32, f16:     1 value of K     [panel]
//   bf16:         2 values of K    [panel][2], zero where k ends
//   i2 to i8:     a group          scales [panel] f16, minima [panel] f16 where there are any, quads
//   with a super group (256 values): scales [panel] f16, minima [panel] f16 where there are any, then for every 32 values int8 [panel]
//                                  for each group of them that multiply those scales, int8 [panel] that multiply the minima, quads;
//                                  in i2 both are nibbles of one byte, the upper one the minimum's
//   i8s:          a span           scales [panel] float32, quads, zero points where k ends
// The quads of 32 values of b bits are [b][panel][4]. Of 8 bits each quad has a row; of 4, 5 and 6 bits the lower 4 of two quads share a
// row, of 2 and 3 bits the lower 2 of four; then come the bits above those, 1 of eight quads or 2 of four to a row. The first quad of a row
// has the lowest bits of each byte. Quad i is values 4 i to 4 i + 3 or, where paired() holds, 2 i, 2 i + 1, 16 + 2 i and 17 + 2 i.
#pragma once

#include "ops.h"

namespace octavo {

static constexpr int kSuper = 256;
static constexpr int kActSpan = 64;  // values of K between two visits to the float32 sums of i8s

static constexpr bool is_float(Format format) { return format == Format::f32 || format == Format::f16 || format == Format::bf16; }

// Of an integer format: the bits of a value, those that stand in the first rows of its quads, and those above.
static constexpr int bits_of(Format format) {
    return format == Format::i8 || format == Format::i8s ? 8 : 2 + static_cast<int>(format) - static_cast<int>(Format::i2);
}
static constexpr int low_bits(Format format) { return bits_of(format) == 8 ? 8 : bits_of(format) >= 4 ? 4 : 2; }
static constexpr int high_bits(Format format) { return bits_of(format) - low_bits(format); }

// Where so many bits of a quad stand: in which of their rows, and from which bit of each byte on.
struct BitPlace {
    int row, bit;
};
static constexpr BitPlace bit_place(int bits, int quad) { return {quad * bits / 8, quad * bits % 8}; }

static constexpr int64_t quad_bytes(Format format, int panel, int values) { return int64_t{panel} * values * bits_of(format) / 8; }
// What a group under a super group has beside its quads.
static constexpr bool has_nibble_factors(Format format) { return format == Format::i2; }
static constexpr int factor_bytes(Format format, int panel, bool minimum) {
    return panel * (minimum && !has_nibble_factors(format) ? 2 : 1);
}
static constexpr int64_t group_bytes(Format format, int panel, int group, bool minimum, bool super) {
    const int64_t scales = int64_t{panel} * (minimum ? 4 : 2);
    return super ? scales + kSuper / group * factor_bytes(format, panel, minimum) + quad_bytes(format, panel, kSuper)
                 : scales + quad_bytes(format, panel, group);
}

// Whether groups of values of so many bits are of 16 of them, not of 32 or more.
static constexpr bool has_sixteens(int bits) { return bits == 2 || bits == 3 || bits == 6; }
// Whether a quad takes from both halves of its 32 values: on a level with `paired_halves`.
static constexpr bool paired(Format format, bool paired_halves) {
    return paired_halves && bits_of(format) < 8 && !has_sixteens(bits_of(format));
}

// Values of K in a step, and its bytes.
static constexpr int step_values(Format format, int group, bool super) {
    return format == Format::bf16 ? 2 : is_float(format) ? 1 : super ? kSuper : format == Format::i8s ? kActSpan : group;
}
static constexpr int64_t step_bytes(Format format, int panel, int group, bool minimum, bool super) {
    return is_float(format)        ? int64_t{panel} * (format == Format::f16 ? 2 : 4)
           : format == Format::i8s ? int64_t{4} * panel + quad_bytes(format, panel, kActSpan)
                                   : group_bytes(format, panel, group, minimum, super);
}
static inline int64_t steps_of(const PackedWeight& w) {
    int values = step_values(w.format, w.group, w.super_group != 0);
    return (w.k + values - 1) / values;
}

// Where value i of 32 stands among the quads.
static constexpr int place_of(int i, bool paired) { return paired ? i % 16 / 2 * 4 + i / 16 * 2 + i % 2 : i; }

// What a row of int8 activations holds for every 32 values of K, behind the values. Either half has a scale of its own, an integer times
// that of the group: halves then add up as integers where that is cheaper. That of the group is a power of two, so that an integer below
// 2^22 times it is the difference of two floats: add the integer to the bits of `magic`, and subtract `magic`.
struct ActGroup {
    float scale;
    int16_t factor[2];  // 1 to kMostFactor
    float half_scale[2];
    float sum, half_sum[2];  // of the values that stand in the group, in either half; exact
    float magic;             // 1.5 * 2^23 * scale
    // For Dot<4> of dot_quads.h: what the products of either half begin at, and what all of them times their factors are added to, for
    // q - 8 and for q.
    int32_t start[2], bits[2];
};
static constexpr int kLowerStart = 1 << 14;  // 16 products with q - 8, at most 2^14 - 128, and this: not below 0, and below 2^15
static constexpr int kMostFactor = 64;       // with which 32 products with weights of 4 bits stay below 2^22
static_assert(2 * 16 * 127 * 15 * kMostFactor < 1 << 22);

// What a row of int8 activations holds behind every span of values, zeros where k ends.
struct ActSpan {
    float scale;
    int32_t offset;  // what the zero point of the weights adds to a dot product, negated
};
static constexpr int kSpanZero = 128;

}  // namespace octavo
