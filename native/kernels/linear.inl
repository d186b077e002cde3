// Linear layers: the work of a call shared out, rows of a packed weight read back.
#include "../shares.h"
#include "linear_tiles.inl"
#ifdef OCTAVO_HAS_AMX
#include "linear_amx.inl"
#endif
#include "quantize.inl"

namespace octavo::ISA {

static int panel_of(Format) { return kPanel; }

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
    constexpr int kPreparedRows = 16;  // enough groups to be quantized side by side
    alignas(64) float sums[2][kMostColumns / kPanel][kRowBlock * kPanel], products[kPreparedRows * kMostColumns];
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
            for (int first = 0; first < rows; first += kPreparedRows) {
                const int count = rows - first < kPreparedRows ? rows - first : kPreparedRows;
                for (int r = 0; r < count; ++r)
                    for (int i = 0; i < columns; i += W) {
                        const int at = (first + r) * kPanel + i % kPanel;
                        vf gate = load(sums[0][i / kPanel] + at), up = load(sums[1][i / kPanel] + at);
                        if (a.gate_bias) gate = add(gate, load_n(a.gate_bias + column + i, columns - i));
                        if (a.up_bias) up = add(up, load_n(a.up_bias + column + i, columns - i));
                        store(products + r * kMostColumns + i, mul(activate(a.kind, gate), up));
                    }
                prepare(a.form, products, kMostColumns, count, column, columns, a.out + (row + first) * out_stride, out_stride);
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
