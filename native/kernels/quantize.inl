// Preparing activations: rounding, or integers with a scale for a group or a span. Each of these is a chain of latencies - the largest
// value, a division or two, the sum - so that as many as kAtOnce go through it side by side, and what is one number for each is a lane.
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

// Values of a row that are quantized together, a group or a span.
struct Piece {
    const float* x;
    int n;
    std::byte* out;
};
constexpr int kAtOnce = 16;

// The largest magnitude of each kSize values of the pieces, [pieces][kPieceSize / kSize]; whether all are finite.
template <int kPieceSize, int kSize>
static inline bool find_largest(const Piece* pieces, int count, float* largest) {
    vf spoiled = zero();  // max() passes NaN over; NaN or infinity times 0 is NaN
    for (int i = 0; i < count; ++i)
        for (int begin = 0; begin < kPieceSize; begin += kSize) {
            vf top = zero();
            for (int at = begin; at < begin + kSize; at += W) {
                const vf x = load_n(pieces[i].x + at, pieces[i].n - at);
                top = max(abs(x), top);
                spoiled = add(spoiled, mul(x, zero()));
            }
            *largest++ = reduce_max(top);
        }
    return reduce_add(spoiled) == 0.0f;
}

// The smallest power of two that is not below x: at least 2^-126.
static inline float power_above(float x) {
    constexpr uint32_t kMantissa = (1u << 23) - 1;
    const uint32_t power = (f32_to_bits(x) + kMantissa) & ~kMantissa;
    return bits_to_f32(power ? power : kMantissa + 1);
}

// The smallest integers, of at least 1, times which the scales cover the halves.
static inline vf factors_of(vf halves, vf scales) {
    const vf one = set1(1.0f), exact = min(mul(mul(halves, set1(1.0f / 127.0f)), div(one, scales)), set1(static_cast<float>(kMostFactor)));
    const vf nearest = to_f32(to_i32(exact));
    return max(select_lt(nearest, exact, add(nearest, one), nearest), one);
}

// Groups of up to 32 values as int8, nearest even. The scale of a group is the least power of two of which kMostFactor cover max|x| / 127,
// that of a half an integer times it, enough for its own max|x| / 127. A value that is not finite, or too large for `magic`, makes the
// scale NaN, and so every output of the row.
static void quantize_groups(Act act, const Piece* groups, int count) {
    constexpr float kNaN = __builtin_nanf("");
    float largest[2 * kAtOnce] = {}, scales[kAtOnce], half_scales[2][kAtOnce], inverses[2][kAtOnce];
    int32_t factors[2][kAtOnce];
    const bool finite = find_largest<32, 16>(groups, count, largest);
    if (!finite && count > 1) {
        for (int i = 0; i < count; ++i) quantize_groups(act, groups + i, 1);
        return;
    }
    float halves[2][kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) {
        halves[0][i] = largest[2 * i], halves[1][i] = largest[2 * i + 1];
        const float power = power_above((halves[0][i] > halves[1][i] ? halves[0][i] : halves[1][i]) * (1.0f / (127.0f * kMostFactor)));
        scales[i] = finite && power <= 0x1p104f ? power : kNaN;
    }
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < count; i += W) {
            const vf scale = load(scales + i);
            const vf factor = select_lt(zero(), scale, factors_of(load(halves[half] + i), scale), set1(1.0f)), own = mul(scale, factor);
            store_i(factors[half] + i, to_i32(factor));
            store(half_scales[half] + i, own);
            store(inverses[half] + i, select_lt(zero(), scale, div(set1(1.0f), own), zero()));
        }

    for (int i = 0; i < count; ++i) {
        // In place: written as a whole, its fields would be stored one by one and read back at once, before they have arrived.
        ActGroup& group = *reinterpret_cast<ActGroup*>(groups[i].out + group_ints(act));
        group.scale = scales[i];
        group.magic = 12582912.0f * group.scale;
        vi q[32 / W];
        int32_t whole_sum = 0;
        for (int half = 0; half < 2; ++half) {
            const int32_t factor = factors[half][i];
            group.factor[half] = static_cast<int16_t>(factor);
            group.half_scale[half] = half_scales[half][i];
            const vf inverse = set1(inverses[half][i]);
            vf sum = zero();
            for (int v = half * 16 / W; v < (half + 1) * 16 / W; ++v) {
                q[v] = finite ? to_i32(mul(load_n(groups[i].x + v * W, groups[i].n - v * W), inverse)) : zero_i();
                sum = add(sum, to_f32(q[v]));
            }
            const auto plain = static_cast<int32_t>(reduce_add(sum));  // integers: exact in any order
            group.start[half] = (half ? 0 : kLowerStart) - 8 * plain;
            group.half_sum[half] = group.scale * static_cast<float>(factor * plain);
            whole_sum += factor * plain;
        }
        group.sum = group.scale * static_cast<float>(whole_sum);
        group.bits[0] = static_cast<int32_t>(f32_to_bits(group.magic)) - (Dot<4>::kTurns ? kLowerStart * group.factor[0] : 8 * whole_sum);
        group.bits[1] = group.bits[0] + 8 * whole_sum;
        store_ints(act, groups[i].out, q, group);
    }
}

// Spans of up to 64 values as int8, nearest even, with the scale max|x| / 127; what is not finite as in quantize_groups().
static void quantize_spans(const Piece* spans, int count) {
    float scales[kAtOnce] = {}, inverses[kAtOnce];
    const bool finite = find_largest<kActSpan, kActSpan>(spans, count, scales);
    if (!finite && count > 1) {
        for (int i = 0; i < count; ++i) quantize_spans(spans + i, 1);
        return;
    }
    for (int i = 0; i < count; i += W) {
        const vf scale = finite ? div(load(scales + i), set1(127.0f)) : set1(__builtin_nanf("")), inverse = div(set1(1.0f), scale);
        store(scales + i, scale);
        store(inverses + i, select_lt(inverse, set1(__builtin_inff()), inverse, zero()));
    }
    for (int i = 0; i < count; ++i) {
        vi q[kActSpan / W];
        vf sum = zero();
        for (int v = 0; v < kActSpan / W; ++v) {
            q[v] = finite ? to_i32(mul(load_n(spans[i].x + v * W, spans[i].n - v * W), set1(inverses[i]))) : zero_i();
            sum = add(sum, to_f32(q[v]));
        }
        for (int part = 0; part < kActSpan / 32; ++part) store_units(spans[i].out + part * 32 * Dot<8>::kUnits, q + part * 32 / W);
        const ActSpan span{scales[i], (Dot<8>::kOffset - kSpanZero) * static_cast<int32_t>(reduce_add(sum))};  // exact, as above
        std::memcpy(spans[i].out + SpanTile::kActValues, &span, sizeof span);
    }
}

// Calls quantize(pieces, count) until all of the rows' values have been in a piece of up to `size`, which takes `bytes`.
template <class Quantize>
static inline void in_pieces(const float* x, int64_t x_stride, int rows, int columns, int size, std::byte* out, int64_t out_stride,
                             int64_t bytes, Quantize quantize) {
    Piece pieces[kAtOnce];
    int count = 0;
    for (int row = 0; row < rows; ++row, x += x_stride, out += out_stride)
        for (int i = 0; i < columns; i += size) {
            pieces[count++] = {x + i, columns - i < size ? columns - i : size, out + i / size * bytes};
            if (count == kAtOnce) quantize(pieces, count), count = 0;
        }
    if (count) quantize(pieces, count);
}

// Values [begin, begin + columns) of rows, x being the first of them, `out` where the first row begins; begin is a multiple of
// part_columns(act) and of W.
static void prepare(Act act, const float* x, int64_t x_stride, int rows, int begin, int columns, std::byte* out, int64_t out_stride) {
    switch (act) {
        case Act::f32:
            for (int row = 0; row < rows; ++row)
                std::memcpy(out + row * out_stride + 4 * begin, x + row * x_stride, 4 * static_cast<size_t>(columns));
            break;
        case Act::bf16:
            for (int row = 0; row < rows; ++row)
                for (int i = 0; i < columns; i += W)
                    round_to_bf16(x + row * x_stride + i, columns - i, reinterpret_cast<Bf16Act*>(out + row * out_stride) + begin + i);
            break;
        case Act::q8:
        case Act::q8h:
        case Act::q8w: {
            const int64_t bytes = group_ints(act) + static_cast<int64_t>(sizeof(ActGroup));
            in_pieces(x, x_stride, rows, columns, 32, out + begin / 32 * bytes, out_stride, bytes,
                      [act](const Piece* groups, int count) { quantize_groups(act, groups, count); });
            break;
        }
        case Act::s8:
            in_pieces(x, x_stride, rows, columns, kActSpan, out + begin / kActSpan * SpanTile::kActStep, out_stride, SpanTile::kActStep,
                      quantize_spans);
            break;
    }
}

static void quantize(const QuantizeArgs& a, Range rows) {
    const int64_t bytes = act_bytes(a.act, a.k);
    prepare(a.act, a.x + rows.begin * a.x_stride, a.x_stride, static_cast<int>(rows.end - rows.begin), 0, a.k, a.out + rows.begin * bytes,
            bytes);
}

}  // namespace octavo::ISA
