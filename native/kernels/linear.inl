// Linear layers: preparing activations, the work of a call shared out, rows of a packed weight read back.
#include "../shares.h"
#include "linear_tiles.inl"
#ifdef OCTAVO_HAS_AMX
#include "linear_amx.inl"
#endif

namespace octavo::ISA {

static Act act_of(Format format) {
    switch (format) {
        case Format::f32:
        case Format::f16:
            return Act::f32;
        case Format::bf16:
            return Act::bf16;
        case Format::i2:
        case Format::i3:
        case Format::i4:
        case Format::i5:
        case Format::i6:
            return has_sixteens(bits_of(format)) ? kActSixteens : Act::q8;
        case Format::i8:
            return kActBytes;
        case Format::i8s:
            return Act::s8;
    }
    return Act::f32;
}

static int panel_of(Format) { return kPanel; }

#ifdef OCTAVO_HAS_DPBF16
using Bf16Act = bf16;
#else
using Bf16Act = float;  // a broadcast is then a load, and not a load and a shift
#endif

// The bytes of 32 integers.
static constexpr int64_t group_ints(Act act) { return act == Act::q8w ? 64 : 32; }

static int64_t act_bytes(Act act, int k) {
    switch (act) {
        case Act::f32:
            return 4 * int64_t{k};
        case Act::bf16:
            return (int64_t{k} + W - 1) / W * W * static_cast<int64_t>(sizeof(Bf16Act));
        case Act::q8:
        case Act::q8h:
        case Act::q8w:
            return (int64_t{k} + 31) / 32 * (group_ints(act) + static_cast<int64_t>(sizeof(ActGroup)));
        case Act::s8:
            return (int64_t{k} + kActSpan - 1) / kActSpan * SpanTile::kActStep;
    }
    return 0;
}

static inline void round_to_bf16(const float* x, int n, bf16* out) { store_bf16(out, load_n(x, n)); }
static inline void round_to_bf16(const float* x, int n, float* out) {
    bf16 rounded[W];
    store_bf16(rounded, load_n(x, n));
    store(out, load_bf16(rounded));
}

// The smallest power of two that is not below x: at least 2^-126.
static inline float power_above(float x) {
    constexpr uint32_t kMantissa = (1u << 23) - 1;
    const uint32_t power = (f32_to_bits(x) + kMantissa) & ~kMantissa;
    return bits_to_f32(power ? power : kMantissa + 1);
}

// The smallest integer times which the scale of a group covers a half of it.
static inline int32_t factor_of(float half, float reciprocal) {
    const float needed = half * (1.0f / 127.0f) * reciprocal, exact = needed < kMostFactor ? needed : kMostFactor;
    const auto factor = static_cast<int32_t>(exact) + (exact > static_cast<float>(static_cast<int32_t>(exact)));
    return factor < 1 ? 1 : factor;
}

// Up to 32 values as int8, nearest even. The scale of the group is the least power of two of which kMostFactor cover max|x| / 127, that of
// a half an integer times it, enough for its own max|x| / 127. A value that is not finite, or too large for `magic`, makes the scale NaN,
// and so every output of the row.
static inline void quantize_group(Act act, const float* x, int n, std::byte* out) {
    constexpr int kVectors = 32 / W;
    vf values[kVectors], largest[2] = {zero(), zero()}, not_finite = zero();
    for (int i = 0; i < kVectors; ++i) {
        values[i] = load_n(x + i * W, n - i * W);
        largest[i * W / 16] = max(largest[i * W / 16], abs(values[i]));
        not_finite = add(not_finite, mul(values[i], zero()));
    }
    ActGroup group;
    const float halves[2] = {reduce_max(largest[0]), reduce_max(largest[1])}, whole = halves[0] > halves[1] ? halves[0] : halves[1];
    const float power = power_above(whole * (1.0f / (127.0f * kMostFactor)));
    const float check = power > 0x1p104f ? bits_to_f32(0x7fc00000u) : reduce_add(not_finite);
    group.scale = check != 0.0f ? check : power;
    group.magic = 12582912.0f * group.scale;
    vi q[kVectors];
    int32_t whole_sum = 0;
    for (int half = 0; half < 2; ++half) {
        const int32_t factor = check != 0.0f ? 1 : factor_of(halves[half], 1.0f / group.scale);
        group.factor[half] = static_cast<int16_t>(factor);
        group.half_scale[half] = group.scale * static_cast<float>(factor);
        const float inverse = check != 0.0f ? 0.0f : 1.0f / group.half_scale[half];
        vf sum = zero();
        for (int i = half * 16 / W; i < (half + 1) * 16 / W; ++i) {
            q[i] = check != 0.0f ? zero_i() : to_i32(mul(values[i], set1(inverse)));
            sum = add(sum, to_f32(q[i]));
        }
        const auto plain = static_cast<int32_t>(reduce_add(sum));  // integers: exact in any order
        group.start[half] = (half ? 0 : kLowerStart) - 8 * plain;
        group.half_sum[half] = group.scale * static_cast<float>(factor * plain);
        whole_sum += factor * plain;
    }
    group.sum = group.scale * static_cast<float>(whole_sum);
    group.bits[0] = static_cast<int32_t>(f32_to_bits(group.magic)) - (Dot<4>::kTurns ? kLowerStart * group.factor[0] : 8 * whole_sum);
    group.bits[1] = group.bits[0] + 8 * whole_sum;
    store_ints(act, out, q, group);
    std::memcpy(out + group_ints(act), &group, sizeof group);
}

// A span of up to 64 values as int8, nearest even, with the scale max|x| / 127; what is not finite as in quantize_group().
static inline void quantize_span(const float* x, int n, std::byte* out) {
    constexpr int kVectors = kActSpan / W;
    vf values[kVectors], largest = zero(), not_finite = zero(), sum = zero();
    for (int i = 0; i < kVectors; ++i) {
        values[i] = load_n(x + i * W, n - i * W);
        largest = max(largest, abs(values[i]));
        not_finite = add(not_finite, mul(values[i], zero()));
    }
    const float check = reduce_add(not_finite), scale = check != 0.0f ? check : reduce_max(largest) / 127.0f;
    float inverse = 1.0f / scale;
    if (check != 0.0f || inverse > 3.402823466e38f) inverse = 0.0f;
    vi q[kVectors];
    for (int i = 0; i < kVectors; ++i) {
        q[i] = check != 0.0f ? zero_i() : to_i32(mul(values[i], set1(inverse)));
        sum = add(sum, to_f32(q[i]));
    }
    for (int i = 0; i < kActSpan / 32; ++i) store_units(out + i * 32 * Dot<8>::kUnits, q + i * 32 / W);
    const ActSpan span{scale, (Dot<8>::kOffset - kSpanZero) * static_cast<int32_t>(reduce_add(sum))};  // integers: exact in any order
    std::memcpy(out + SpanTile::kActValues, &span, sizeof span);
}

// Values [begin, end) of a row, x being the first of them; begin is a multiple of part_columns(act) and of W.
static inline void prepare(Act act, const float* x, int begin, int end, std::byte* row) {
    const int count = end - begin;
    switch (act) {
        case Act::f32:
            std::memcpy(row + 4 * begin, x, 4 * static_cast<size_t>(count));
            break;
        case Act::bf16:
            for (int i = 0; i < count; i += W) round_to_bf16(x + i, count - i, reinterpret_cast<Bf16Act*>(row) + begin + i);
            break;
        case Act::q8:
        case Act::q8h:
        case Act::q8w:
            for (int i = 0; i < count; i += 32)
                quantize_group(act, x + i, count - i < 32 ? count - i : 32,
                               row + (begin + i) / 32 * (group_ints(act) + static_cast<int64_t>(sizeof(ActGroup))));
            break;
        case Act::s8:
            for (int i = 0; i < count; i += kActSpan)
                quantize_span(x + i, count - i < kActSpan ? count - i : kActSpan, row + (begin + i) / kActSpan * SpanTile::kActStep);
            break;
    }
}

static void quantize(const QuantizeArgs& a, Range rows) {
    const int64_t row_bytes = act_bytes(a.act, a.k);
    for (int64_t row = rows.begin; row < rows.end; ++row) prepare(a.act, a.x + row * a.x_stride, 0, a.k, a.out + row * row_bytes);
}

using PanelSums = void (*)(const PackedWeight&, int64_t panel, const std::byte* x, int64_t x_stride, int rows, float* sums);

static PanelSums panel_sums_of(const PackedWeight& w) {
    const bool two_levels = w.super_group != 0;
    switch (w.format) {
        case Format::f32:
            return panel_sums<FloatTile<F32Weights>>;
        case Format::f16:
            return panel_sums<FloatTile<F16Weights>>;
        case Format::bf16:
            return panel_sums<FloatTile<Bf16Weights>>;
        case Format::i2:
            return panel_sums<IntTile<Format::i2, 16, true, true>>;
        case Format::i3:
            return panel_sums<IntTile<Format::i3, 16, false, true>>;
        case Format::i4:
            if (two_levels) return panel_sums<IntTile<Format::i4, 32, true, true>>;
            if (w.group == 64) return panel_sums<IntTile<Format::i4, 64, true, false>>;
            if (w.group == 128) return panel_sums<IntTile<Format::i4, 128, true, false>>;
            return w.has_minimum ? panel_sums<IntTile<Format::i4, 32, true, false>> : panel_sums<IntTile<Format::i4, 32, false, false>>;
        case Format::i5:
            if (two_levels) return panel_sums<IntTile<Format::i5, 32, true, true>>;
            return w.has_minimum ? panel_sums<IntTile<Format::i5, 32, true, false>> : panel_sums<IntTile<Format::i5, 32, false, false>>;
        case Format::i6:
            return panel_sums<IntTile<Format::i6, 16, false, true>>;
        case Format::i8:
            return panel_sums<IntTile<Format::i8, 32, false, false>>;
        case Format::i8s:
            return panel_sums<SpanTile>;
    }
    return nullptr;
}

// Panels [begin, end) of one weight.
static void linear_panels(const LinearArgs& a, int64_t begin, int64_t end, Range all) {
    alignas(64) float sums[kRowBlock * kPanel];
    const PackedWeight& weight = *a.weight;
    const PanelSums compute = panel_sums_of(weight);
    const int64_t x_stride = act_bytes(act_of(weight.format), weight.k);
    for (int row = static_cast<int>(all.begin), last = static_cast<int>(all.end); row < last; row += kRowBlock) {
        const int rows = last - row < kRowBlock ? last - row : kRowBlock;
        for (int64_t panel = begin; panel < end; ++panel) {
            const int column = static_cast<int>(panel) * kPanel;
            if (rows > 1) fetch_panel(a, column, row, rows);
            compute(weight, panel, a.x + row * x_stride, x_stride, rows, sums);
            write_panel(a, column, row, rows, sums);
        }
    }
}

// Units [begin, end) of gated_columns(). Both matrices are computed for the same columns at a time, so that their products need not leave
// the nearest cache.
static void gated_units(const GatedArgs& a, int64_t begin, int64_t end, Range all) {
    constexpr int kMostColumns = kPanel < kActSpan ? kActSpan : kPanel;
    alignas(64) float sums[2][kMostColumns / kPanel][kRowBlock * kPanel];
    const int unit_columns = gated_columns(kPanel, a.form);
    const PackedWeight* weights[2] = {a.gate, a.up};
    const PanelSums compute[2] = {panel_sums_of(*a.gate), panel_sums_of(*a.up)};
    const std::byte* xs[2] = {a.gate_x, a.up_x};
    const int n = a.gate->n;
    const int64_t out_stride = act_bytes(a.form, n);
    for (int row = static_cast<int>(all.begin), last = static_cast<int>(all.end); row < last; row += kRowBlock) {
        const int rows = last - row < kRowBlock ? last - row : kRowBlock;
        for (int64_t unit = begin; unit < end; ++unit) {
            const int column = static_cast<int>(unit) * unit_columns, columns = n - column < unit_columns ? n - column : unit_columns;
            for (int i = 0; i < 2; ++i) {
                const int64_t x_stride = act_bytes(act_of(weights[i]->format), weights[i]->k);
                for (int panel = 0; panel * kPanel < columns; ++panel)
                    compute[i](*weights[i], column / kPanel + panel, xs[i] + row * x_stride, x_stride, rows, sums[i][panel]);
            }
            for (int r = 0; r < rows; ++r) {
                float y[kMostColumns];
                for (int i = 0; i < columns; i += W) {
                    const int at = r * kPanel + i % kPanel;
                    vf gate = load(sums[0][i / kPanel] + at), up = load(sums[1][i / kPanel] + at);
                    if (a.gate_bias) gate = add(gate, load_n(a.gate_bias + column + i, columns - i));
                    if (a.up_bias) up = add(up, load_n(a.up_bias + column + i, columns - i));
                    store(y + i, mul(activate(a.kind, gate), up));
                }
                prepare(a.form, y, column, column + columns, a.out + (row + r) * out_stride);
            }
        }
    }
}

static void gated_linear(const GatedArgs& a, int thread, int threads) {
    const int columns = gated_columns(kPanel, a.form);
    const auto [from, to] = cuts_of((a.gate->n + columns - 1) / columns, a.rows, thread, threads);
    between(from, to, a.rows, [&](int64_t begin, int64_t end, Range rows) { gated_units(a, begin, end, rows); });
}

// The panels of all weights, end to end, are cut into ranges of equal bytes: a thread reads its own memory once, in order.
static void linear(const LinearArgs* list, int count, int thread, int threads) {
    int64_t total = 0;
    for (int i = 0; i < count; ++i) total += list[i].weight->bytes;
    int64_t start = 0;
    for (int i = 0; i < count; ++i) {
        const auto [from, to] = cuts_of(*list[i].weight, start, share(total, thread, threads), list[i].rows);
        between(from, to, list[i].rows, [&](int64_t begin, int64_t end, Range rows) { linear_panels(list[i], begin, end, rows); });
        start += list[i].weight->bytes;
    }
}

// The value at `place` among the quads of a column.
static inline int read_quads(Format format, int panel, const std::byte* quads, int place) {
    const int low = low_bits(format), high = high_bits(format);
    auto part = [&](int first_row, int bits) {
        const BitPlace at = bit_place(bits, place / 4);
        return static_cast<int>(quads[(first_row + at.row) * panel * 4 + place % 4]) >> at.bit & ((1 << bits) - 1);
    };
    return high ? part(0, low) | part(low, high) << low : part(0, low);
}

static inline void read_row(const PackedWeight& w, int64_t row, float factor, float* out) {
    const std::byte* panel = w.data + row / w.panel * w.panel_bytes;
    const int column = static_cast<int>(row % w.panel);
    const int values = step_values(w.format, w.group, w.super_group != 0);
    const int64_t bytes = step_bytes(w.format, w.panel, w.group, w.has_minimum, w.super_group != 0);
    for (int k = 0; k < w.k;) {
        const std::byte* p = panel + k / values * bytes;
        if (is_float(w.format)) {
            if (w.format == Format::f32) out[k] = factor * reinterpret_cast<const float*>(p)[column];
            if (w.format == Format::f16) out[k] = factor * f16_to_f32(reinterpret_cast<const f16*>(p)[column]);
            if (w.format == Format::bf16) out[k] = factor * bf16_to_f32(reinterpret_cast<const bf16*>(p)[2 * column + k % 2]);
            ++k;
            continue;
        }
        if (w.format == Format::i8s) {
            const float scale = reinterpret_cast<const float*>(p)[column];
            p += 4 * w.panel;
            for (const int end = k + values < w.k ? k + values : w.k; k < end; ++k) {
                const int q = static_cast<int>(p[(k % kActSpan / 4 * w.panel + column) * 4 + k % 4]) - w.zero;
                out[k] = factor * (scale * static_cast<float>(q));
            }
            continue;
        }
        const f16* halves = reinterpret_cast<const f16*>(p) + column;
        const float super_scale = f16_to_f32(halves[0]), super_minimum = w.has_minimum ? f16_to_f32(halves[w.panel]) : 0.0f;
        p += w.panel * (w.has_minimum ? 4 : 2);
        const int group = w.super_group ? w.group : 32, factors = factor_bytes(w.format, w.panel, w.has_minimum);
        for (const int end = k + values; k < end; k += 32) {
            const std::byte* quads = p + (w.super_group ? 32 / group * factors : 0);
            float scale = super_scale, minimum = super_minimum;
            for (int i = 0; i < 32; ++i) {
                if (w.super_group && i % group == 0) {
                    const int8_t* own = reinterpret_cast<const int8_t*>(p + i / group * factors) + column;
                    const bool nibbles = has_nibble_factors(w.format);
                    scale = super_scale * static_cast<float>(nibbles ? own[0] & 15 : own[0]);
                    if (w.has_minimum) minimum = super_minimum * static_cast<float>(nibbles ? own[0] >> 4 & 15 : own[w.panel]);
                }
                if (!w.has_minimum) minimum = scale * static_cast<float>(-w.zero);
                const int q = read_quads(w.format, w.panel, quads + column * 4, place_of(i, paired(w.format, kPairedHalves)));
                // The product is exact in double, so that the value is rounded once.
                out[k + i] = factor * static_cast<float>(static_cast<double>(scale) * q + minimum);
            }
            p = quads + quad_bytes(w.format, w.panel, 32);
        }
    }
}

static void embed(const EmbedArgs& a, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) read_row(*a.weight, a.ids[row], a.scale, a.out + row * a.out_stride);
}

}  // namespace octavo::ISA
