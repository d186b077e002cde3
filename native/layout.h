// The bytes of a packed weight: what pack() writes and the linear kernels read. ISA files include it: nothing here is external.
//
// A panel holds `panel` columns, zero where n ends, and is a sequence of steps along K:
//   f32, f16:     1 value of K     [panel]
//   bf16:         2 values of K    [panel][2], zero where k ends
//   i8, i4:       a group          scales [panel] f16, minima [panel] f16 where there are any, quads
//   with a super group (256 values): scales [panel] f16, minima [panel] f16 where there are any, then for each group of it
//                                  int8 [panel] that multiply those scales, int8 [panel] that multiply the minima, quads
//   i8s:          a span           scales [panel] float32, quads, zero points where k ends
// The quads of i8 and i8s are [group / 4][panel][4]. Those of i4 are [group / 8][panel][4]: the low nibbles are quad 2 i, the high ones
// 2 i + 1. Quad i is values 4 i to 4 i + 3 of the group or, in i4 of a level with `paired_halves`, of every 32 values 2 i, 2 i + 1,
// 16 + 2 i and 17 + 2 i.
#pragma once

#include "ops.h"

namespace octavo {

static constexpr int kSuper = 256;
static constexpr int kActSpan = 64;  // values of K between two visits to the float32 sums of i8s

static constexpr bool has_bytes(Format format) { return format == Format::i8 || format == Format::i8s; }
static constexpr int64_t quad_bytes(Format format, int panel, int group) { return int64_t{panel} * group / (has_bytes(format) ? 1 : 2); }
static constexpr int64_t group_bytes(Format format, int panel, int group, bool minimum, bool super) {
    return int64_t{panel} * (minimum ? 2 : 1) * (super ? 1 : 2) + quad_bytes(format, panel, group);
}
static constexpr int64_t super_bytes(Format format, int panel, int group, bool minimum) {
    return int64_t{panel} * (minimum ? 2 : 1) * 2 + kSuper / group * group_bytes(format, panel, group, minimum, true);
}

static constexpr bool is_float(Format format) { return format == Format::f32 || format == Format::f16 || format == Format::bf16; }

// Values of K in a step, and its bytes.
static constexpr int step_values(Format format, int group, bool super) {
    return format == Format::bf16 ? 2 : is_float(format) ? 1 : super ? kSuper : format == Format::i8s ? kActSpan : group;
}
static constexpr int64_t step_bytes(Format format, int panel, int group, bool minimum, bool super) {
    return is_float(format)        ? int64_t{panel} * (format == Format::f16 ? 2 : 4)
           : format == Format::i8s ? int64_t{4} * panel + quad_bytes(format, panel, kActSpan)
           : super                 ? super_bytes(format, panel, group, minimum)
                                   : group_bytes(format, panel, group, minimum, false);
}
static inline int64_t steps_of(const PackedWeight& w) {
    int values = step_values(w.format, w.group, w.super_group != 0);
    return (w.k + values - 1) / values;
}

// Where value i of 32 stands among the quads of i4.
static constexpr int place_of(int i, bool paired) { return paired ? i % 16 / 2 * 4 + i / 16 * 2 + i % 2 : i; }

// What a row of int8 activations holds for every 32 values of K, behind the values. Either half has a scale of its own, an integer times
// that of the group: halves then add up as integers where that is cheaper.
struct ActGroup {
    float scale;
    int16_t factor[2];  // 1 to 256
    float half_scale[2];
    float sum, half_sum[2];  // of the values that stand in the group, in either half
};

// What a row of int8 activations holds behind every span of values, zeros where k ends.
struct ActSpan {
    float scale;
    int32_t offset;  // what the zero point of the weights adds to a dot product, negated
};
static constexpr int kSpanZero = 128;

}  // namespace octavo
