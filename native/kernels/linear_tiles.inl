// The tiles of linear layers: R rows times V vectors of columns, all of K or a block of it.
//
// Every output element has one float32 sum, to which K adds in ascending order (a step, or a group of integers, at a time). A tile reads
// that sum from `sums` and puts it back, exactly, so that neither the height of a tile nor a cut of K shows in the bits.
#include <cstddef>
#include <type_traits>

#include "../layout.h"

namespace octavo::ISA {
namespace {

constexpr int kPanel = kPanelVectors * W;

struct Tile {
    const std::byte* w;  // the panel at the first step
    const std::byte* a;  // the first row at the first step
    int64_t a_stride;
    int64_t steps;
    float* sums;  // [rows][kPanel]
    bool first;   // of the blocks of K: sums are zero, and not yet written
    int zero;
    const std::byte* ahead;  // ahead_bytes of the weights that come next travel meanwhile
    int64_t ahead_bytes;
};

// The weights that come next, as far as `vectors` from `vector` on of a panel see to them, in so many calls of fetch(), two lines at most
// in each: all of them at once would fill the miss buffers.
struct Ahead {
    const std::byte* next;
    int64_t step;
    Ahead(const Tile& t, int64_t calls, int vector, int vectors)
        : next(t.ahead + t.ahead_bytes * vector / kPanelVectors), step(t.ahead_bytes * vectors / kPanelVectors / calls) {}
    void fetch() {
        __builtin_prefetch(next, 0, 2);
        if (step > 64) __builtin_prefetch(next + 64, 0, 2);
        next += step;
    }
};

template <int R, int V>
static inline void load_sums(const Tile& t, int vector, vf (&sum)[R][V]) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) OCTAVO_UNROLL
    for (int v = 0; v < V; ++v) sum[r][v] = t.first ? zero() : load(t.sums + r * kPanel + (vector + v) * W);
}

template <int R, int V>
static inline void store_sums(const Tile& t, int vector, const vf (&sum)[R][V]) {
    OCTAVO_UNROLL
    for (int r = 0; r < R; ++r) OCTAVO_UNROLL
    for (int v = 0; v < V; ++v) store(t.sums + r * kPanel + (vector + v) * W, sum[r][v]);
}

static inline int32_t load_32(const std::byte* p) {
    int32_t value;
    std::memcpy(&value, p, 4);
    return value;
}

// Floating point weights. A step may have two parts, the even and the odd one of a pair of K, each with an operand of its own.
struct F32Weights {
    static constexpr Format kFormat = Format::f32;
    static constexpr int kParts = 1;
    static constexpr int64_t kActStep = 4;
    static inline vf weight(const std::byte* p, int vector, int) { return load(reinterpret_cast<const float*>(p) + vector * W); }
    static inline vf operand(int32_t a) { return set1(bits_to_f32(static_cast<uint32_t>(a))); }
    static inline void mac(vf& sum, vf w, vf a) { accumulate(sum, w, a); }
};

struct F16Weights : F32Weights {
    static constexpr Format kFormat = Format::f16;
    static inline vf weight(const std::byte* p, int vector, int) { return load_f16(reinterpret_cast<const f16*>(p) + vector * W); }
};

#ifdef OCTAVO_HAS_DPBF16
struct Bf16Weights {
    static constexpr Format kFormat = Format::bf16;
    static constexpr int kParts = 1;
    static constexpr int64_t kActStep = 4;
    static inline vi weight(const std::byte* p, int vector, int) { return load_i(reinterpret_cast<const int32_t*>(p) + vector * W); }
    static inline int32_t operand(int32_t a) { return a; }
    static inline void mac(vf& sum, vi w, int32_t a) { dot_bf16(sum, w, a); }
};
#else
struct Bf16Weights : F32Weights {  // activations are float32 values, already rounded
    static constexpr Format kFormat = Format::bf16;
    static constexpr int kParts = 2;
    static constexpr int64_t kActStep = 8;
    static inline vf weight(const std::byte* p, int vector, int part) {
        const bf16* pairs = reinterpret_cast<const bf16*>(p) + 2 * vector * W;
        return part ? odd_bf16(pairs) : even_bf16(pairs);
    }
};
#endif

template <class Weights>
struct FloatTile {
    static constexpr int kRows = kFloatRows, kVectors = kFloatVectors;
    static constexpr int64_t kStepBytes = step_bytes(Weights::kFormat, kPanel, 0, false, false);
    static constexpr int64_t kActStep = Weights::kActStep;

    // A block as float32, exactly and once for all tiles of many rows.
    using Unpacked = FloatTile<F32Weights>;
    static constexpr bool kUnpacks = kUnpackTiles > 0 && std::is_base_of_v<F32Weights, Weights> && !std::is_same_v<Weights, F32Weights>;
    static constexpr int kUnpackedSteps = Weights::kParts;
    static constexpr int64_t kUnpackedBytes = sizeof(float) * kPanel * kUnpackedSteps;
    static inline void unpack(const std::byte* w, int64_t steps, std::byte* out) {
        auto* to = reinterpret_cast<float*>(out);
        if constexpr (kUnpacks)
            for (int64_t step = 0; step < steps; ++step, w += kStepBytes)
                for (int part = 0; part < Weights::kParts; ++part)
                    for (int v = 0; v < kPanelVectors; ++v, to += W) store(to, Weights::weight(w, v, part));
    }

    template <int R, int V>
    static inline void run(const Tile& t, int vector) {
#ifdef OCTAVO_HAS_FLOAT_ROWS
        if constexpr (std::is_same_v<Weights, F32Weights>)
            if (const int64_t fours = t.steps / 4 * 4) {
                const auto multiply = t.first ? multiply_rows<R, kPanel, true> : multiply_rows<R, kPanel, false>;
                multiply(t.w, t.a, t.a_stride, fours, t.sums, t.ahead, 4 * t.ahead_bytes / fours);
                if (fours == t.steps) return;
                return run_steps<R, V>(
                    {t.w + fours * kStepBytes, t.a + fours * kActStep, t.a_stride, t.steps - fours, t.sums, false, t.zero, t.ahead, 0}, 0);
            }
#endif
        run_steps<R, V>(t, vector);
    }

    template <int R, int V>
    static inline void run_steps(const Tile& t, int vector) {
        vf sum[R][V];
        load_sums<R, V>(t, vector, sum);
        const std::byte* w = t.w;
        const std::byte* a = t.a;
        const int64_t steps = t.steps, a_stride = t.a_stride;
        Ahead ahead(t, steps, vector, V);
        for (int64_t step = 0; step < steps; ++step, w += kStepBytes, a += kActStep) {
            if constexpr (R > 1) ahead.fetch();
            OCTAVO_UNROLL
            for (int part = 0; part < Weights::kParts; ++part) {
                // The parts' weights are not to be in registers together: the sums would leave them.
                if (part) asm volatile("" : : : "memory");
                decltype(Weights::weight(w, 0, 0)) weight[V];
                OCTAVO_UNROLL
                for (int v = 0; v < V; ++v) weight[v] = Weights::weight(w, vector + v, part);
                OCTAVO_UNROLL
                for (int r = 0; r < R; ++r) {
                    auto operand = Weights::operand(load_32(a + r * a_stride + 4 * part));
                    OCTAVO_UNROLL
                    for (int v = 0; v < V; ++v) Weights::mac(sum[r][v], weight[v], operand);
                }
            }
        }
        store_sums<R, V>(t, vector, sum);
    }
};

// Quad `quad` of 32 values (layout.h), a byte for each value.
template <Format F>
static inline vi load_quad(const std::byte* p, int quad) {
    constexpr int kLow = low_bits(F), kHigh = high_bits(F);
    const BitPlace low = bit_place(kLow, quad), high = bit_place(kHigh, quad);
    const vi lower = load_i(reinterpret_cast<const int32_t*>(p + low.row * kPanel * 4));
    if constexpr (kLow == 8) return lower;
    const vi q = bits_at(lower, low.bit, (1 << kLow) - 1);
    if constexpr (kHigh == 0) return q;
    const vi upper = load_i(reinterpret_cast<const int32_t*>(p + (kLow + high.row) * kPanel * 4));
    return or_i(q, bits_at(upper, high.bit - kLow, ((1 << kHigh) - 1) << kLow));
}

// Integer weights, group by group: part = the sum over its spans of act_scale * dot, less zero * act_sum; sum += scale * part, sum +=
// minimum * act_sum, where dot is the exact product of a span, act_sum the sum of the activations. A span is 32 values or, where the group
// is smaller or the level's sums have no room for the factors of two halves, 16. Where the level multiplies q - kOffset, dot lacks kOffset
// * act_sum.
template <Format F, int kGroup, bool kMinimum, bool kTwoLevels, bool kAsBytes = false>
struct IntTile {
    using Dot = ISA::Dot<bits_of(F)>;
    static constexpr int kRows = kIntRows, kVectors = kIntVectors;
    static constexpr Format kQuads = kAsBytes ? Format::i8 : F;
    static constexpr int kValues = kTwoLevels ? kSuper : kGroup;  // a step
    static constexpr int64_t kStepBytes =
        step_bytes(F, kPanel, kGroup, kMinimum, kTwoLevels) - quad_bytes(F, kPanel, kValues) + quad_bytes(kQuads, kPanel, kValues);
    static constexpr int kUnits = Dot::kUnits, kSpan = Dot::kSpan, kRun = Dot::kRun;
    static constexpr int64_t kActGroup = 32 * kUnits + static_cast<int64_t>(sizeof(ActGroup));
    static constexpr int kActGroups = kTwoLevels ? kSuper / 32 : kGroup / 32;  // a step
    static constexpr int64_t kActStep = kActGroups * kActGroup;
    static constexpr int kFactors = factor_bytes(F, kPanel, kMinimum);
    static constexpr bool kWide = kGroup > 32;
    static_assert(kSpan <= kGroup && (!kMinimum || Dot::kOffset == 0) && (!Dot::kFactored || 4 * kRun == kSpan));

    // A block whose quads are bytes, for all tiles of many rows. Quads from a single place are put together in less time than their bytes
    // are loaded.
    static constexpr bool kUnpacks = kUnpackTiles > 0 && !kAsBytes && high_bits(F) > 0;
    using Unpacked = IntTile<F, kGroup, kMinimum, kTwoLevels, kUnpacks>;
    static constexpr int kUnpackedSteps = 1;
    static constexpr int64_t kUnpackedBytes = kStepBytes - quad_bytes(kQuads, kPanel, kValues) + quad_bytes(Format::i8, kPanel, kValues);
    static inline void unpack(const std::byte* w, int64_t steps, std::byte* out) {
        auto copy = [&](int64_t bytes) {
            std::memcpy(out, w, static_cast<size_t>(bytes));
            w += bytes, out += bytes;
        };
        for (int64_t step = 0; step < steps; ++step) {
            copy(kPanel * (kMinimum ? 4 : 2));
            for (int group = 0; group < kActGroups; ++group, w += quad_bytes(F, kPanel, 32)) {
                if constexpr (kTwoLevels) copy(32 / kGroup * kFactors);
                for (int v = 0; v < kPanelVectors; ++v) OCTAVO_UNROLL
                for (int quad = 0; quad < 8; ++quad)
                    store_i(reinterpret_cast<int32_t*>(out + (quad * kPanel + v * W) * 4), load_quad<F>(w + v * W * 4, quad));
                out += quad_bytes(Format::i8, kPanel, 32);
            }
        }
    }

    // acc = the exact products of a span, of `half` of the 32 values or both, before finish() where the level applies factors: [R][V].
    template <int R, int V>
    static inline void multiply(const std::byte* quads, const std::byte* a, int64_t a_stride, int half, vi (&acc)[R][V]) {
        vi run[R][V];
        OCTAVO_UNROLL
        for (int quad = 0; quad < kSpan / 4; quad += kRun) {
            vi(&to)[R][V] = quad ? run : acc;
            OCTAVO_UNROLL
            for (int unit = 0; unit < kRun * kUnits; ++unit) {
                if constexpr (Dot::kTurns) {
                    if (unit % (kRun / 2) == 0) OCTAVO_UNROLL
                    for (int i = 0; i < R * V; ++i) {
                        const ActGroup& act = act_group(a + i / V * a_stride);
                        to[i / V][i % V] = unit ? Dot::turn(to[i / V][i % V], act) : Dot::start(act);
                    }
                }
                const int at = half * (kSpan / 4) + quad + (Dot::kTurns ? unit ^ kRun / 2 : unit / kUnits);
                decltype(Dot::weight(acc[0][0], 0)) weight[V];
                OCTAVO_UNROLL
                for (int v = 0; v < V; ++v) weight[v] = Dot::weight(load_quad<kQuads>(quads + v * W * 4, at), unit % kUnits);
                OCTAVO_UNROLL
                for (int r = 0; r < R; ++r) {
                    auto operand = Dot::operand(load_32(a + r * a_stride + (at * kUnits + unit % kUnits) * 4));
                    OCTAVO_UNROLL
                    for (int v = 0; v < V; ++v) {
                        if (unit == 0 && !Dot::kTurns)
                            to[r][v] = Dot::product(weight[v], operand);
                        else
                            Dot::mac(to[r][v], weight[v], operand);
                    }
                }
            }
            if constexpr (!Dot::kFactored) OCTAVO_UNROLL
            for (int i = 0; i < R * V; ++i) {
                vi& finished = to[i / V][i % V];
                finished = Dot::finish(finished, act_group(a + i / V * a_stride));
                if (quad) acc[i / V][i % V] = add_i(acc[i / V][i % V], finished);
            }
        }
    }

    // part + the products of a span, times the scale of its activations.
    static inline vf add_products(const ActGroup& act, int half, vi acc, vf part) {
        if constexpr (Dot::kFactored)
            return add(part, sub(Dot::finish(acc, act, kMinimum), set1(act.magic)));
        else
            return fma(set1(Dot::scale(act, half)), to_f32(acc), part);
    }

    template <int R, int V>
    static inline void run(const Tile& t, int vector) {
        vf sum[R][V];
        load_sums<R, V>(t, vector, sum);
        const std::byte* w = t.w;
        const std::byte* a = t.a;
        const int64_t steps = t.steps, a_stride = t.a_stride;
        const int column = vector * W;
        const vf zero_point = set1(static_cast<float>(Dot::kOffset - t.zero));
        Ahead ahead(t, steps * kActGroups * (32 / kSpan), vector, V);
        for (int64_t step = 0; step < steps; ++step) {
            vf super_scale[V], super_minimum[V], scale[V], minimum[V];
            float parts[kWide ? R * V * W : 1] = {}, act_sums[R] = {};  // of groups of 64 and more
            load_f16s<V>(w, column, super_scale, super_minimum);
            w += kPanel * (kMinimum ? 4 : 2);
            const auto add_part = [&](int r, int v, vf part, float act_sum) __attribute__((always_inline)) {
                sum[r][v] = fma(kTwoLevels ? scale[v] : super_scale[v], part, sum[r][v]);
                if (kMinimum) sum[r][v] = fma(kTwoLevels ? minimum[v] : super_minimum[v], set1(act_sum), sum[r][v]);
            };
            for (int group = 0; group < kActGroups; ++group, a += kActGroup) {
                const std::byte* factors = w + column;
                if constexpr (kTwoLevels) w += 32 / kGroup * kFactors;
                vf part[R][V];
                OCTAVO_UNROLL
                for (int half = 0; half < 32 / kSpan; ++half) {
                    if constexpr (R > 1) ahead.fetch();
                    const bool begins = half * kSpan % kGroup == 0, ends = (half + 1) * kSpan % kGroup == 0;
                    if (kTwoLevels && begins)
                        load_factors<V>(factors + half * kSpan / kGroup * kFactors, super_scale, super_minimum, scale, minimum);
                    vi acc[R][V];
                    multiply<R, V>(w + column * 4, a, a_stride, half, acc);
                    OCTAVO_UNROLL
                    for (int r = 0; r < R; ++r) {
                        const ActGroup& act = act_group(a + r * a_stride);
                        const float act_sum = kGroup < 32 ? act.half_sum[half] : act.sum;
                        if (kWide && half == 0) act_sums[r] += act_sum;
                        OCTAVO_UNROLL
                        for (int v = 0; v < V; ++v) {
                            float* wide = parts + (r * V + v) * W;
                            if (kWide)
                                part[r][v] = load(wide);
                            else if (begins)
                                part[r][v] = kMinimum || Dot::kFactored ? zero() : mul(zero_point, set1(act_sum));
                            part[r][v] = add_products(act, half, acc[r][v], part[r][v]);
                            if (kWide)
                                store(wide, part[r][v]);
                            else if (ends)
                                add_part(r, v, part[r][v], act_sum);
                        }
                    }
                }
                w += quad_bytes(kQuads, kPanel, 32);
            }
            if constexpr (kWide) OCTAVO_UNROLL
            for (int i = 0; i < R * V; ++i) add_part(i / V, i % V, load(parts + i * W), act_sums[i / V]);
        }
        store_sums<R, V>(t, vector, sum);
    }

    static inline const ActGroup& act_group(const std::byte* a) { return *reinterpret_cast<const ActGroup*>(a + 32 * kUnits); }

    template <int V>
    static inline void load_factors(const std::byte* p, const vf (&super_scale)[V], const vf (&super_minimum)[V], vf (&scale)[V],
                                    vf (&minimum)[V]) {
        OCTAVO_UNROLL
        for (int v = 0; v < V; ++v) {
            const auto* own = reinterpret_cast<const uint8_t*>(p + v * W);
            if constexpr (has_nibble_factors(F)) {
                scale[v] = mul(super_scale[v], load_u4(own, false));
                minimum[v] = mul(super_minimum[v], load_u4(own, true));
            } else {
                scale[v] = mul(super_scale[v], load_i8(reinterpret_cast<const int8_t*>(own)));
                if constexpr (kMinimum) minimum[v] = mul(super_minimum[v], load_i8(reinterpret_cast<const int8_t*>(own + kPanel)));
            }
        }
    }

    template <int V>
    static inline void load_f16s(const std::byte* w, int column, vf (&scale)[V], vf (&minimum)[V]) {
        OCTAVO_UNROLL
        for (int v = 0; v < V; ++v) {
            const f16* p = reinterpret_cast<const f16*>(w) + column + v * W;
            scale[v] = load_f16(p);
            if constexpr (kMinimum) minimum[v] = load_f16(p + kPanel);
        }
    }
};

// 8-bit weights and activations with a scale per span: sum += scale * (act_scale * dot) for every span, and nothing but dot products of
// integers within.
struct SpanTile {
    using Dot = ISA::Dot<8>;
    // There is nothing to unpack, which more rows would share: all vectors of a panel, and as many rows as leave the number of sums.
    static constexpr int kVectors = kPanelVectors, kRows = kIntRows * kIntVectors / kPanelVectors;
    static constexpr int64_t kStepBytes = step_bytes(Format::i8s, kPanel, 0, false, false);
    static constexpr int64_t kActValues = kActSpan * Dot::kUnits;
    static constexpr int64_t kActStep = kActValues + static_cast<int64_t>(sizeof(ActSpan));

    // Weights are read as they are packed, whatever the number of rows.
    using Unpacked = SpanTile;
    static constexpr bool kUnpacks = false;
    static constexpr int kUnpackedSteps = 1;
    static constexpr int64_t kUnpackedBytes = kStepBytes;
    static inline void unpack(const std::byte*, int64_t, std::byte*) {}

    template <int R, int V>
    static inline void run(const Tile& t, int vector) {
        const std::byte* w = t.w + 4 * kPanel + vector * W * 4;  // a vector of scales is as long as one of quads
        const std::byte* a = t.a;
        constexpr int kUnits = kActSpan / 4 * Dot::kUnits;
        const int64_t a_stride = t.a_stride;
        Ahead ahead(t, t.steps * kUnits, vector, V);
        if (t.first) OCTAVO_UNROLL
        for (int i = 0; i < R * V; ++i) store(t.sums + i / V * kPanel + (vector + i % V) * W, zero());
        for (int64_t step = 0; step < t.steps; ++step, w += kStepBytes, a += kActStep) {
            vi acc[R][V];
            OCTAVO_UNROLL
            for (int r = 0; r < R; ++r) {
                const vi offset = set1_i(load_32(a + r * a_stride + kActValues + offsetof(ActSpan, offset)));
                OCTAVO_UNROLL
                for (int v = 0; v < V; ++v) acc[r][v] = offset;
            }
            OCTAVO_UNROLL
            for (int unit = 0; unit < kUnits; ++unit) {
                if constexpr (R > 1) ahead.fetch();
                decltype(Dot::weight(acc[0][0], 0)) weight[V];
                OCTAVO_UNROLL
                for (int v = 0; v < V; ++v)
                    weight[v] = Dot::weight(load_quad<Format::i8s>(w + v * W * 4, unit / Dot::kUnits), unit % Dot::kUnits);
                OCTAVO_UNROLL
                for (int r = 0; r < R; ++r) {
                    auto operand = Dot::operand(load_32(a + r * a_stride + 4 * unit));
                    OCTAVO_UNROLL
                    for (int v = 0; v < V; ++v) Dot::mac(acc[r][v], weight[v], operand);
                }
            }
            const float* scales = reinterpret_cast<const float*>(w - 4 * kPanel);
            OCTAVO_UNROLL
            for (int r = 0; r < R; ++r) {
                const vf act_scale = set1(bits_to_f32(static_cast<uint32_t>(load_32(a + r * a_stride + kActValues))));
                OCTAVO_UNROLL
                for (int v = 0; v < V; ++v) {
                    // The float32 sums stay in memory: the integers take the registers.
                    float* sum = t.sums + r * kPanel + (vector + v) * W;
                    store(sum, fma(load(scales + v * W), mul(act_scale, to_f32(acc[r][v])), load(sum)));
                }
            }
        }
    }
};

// A few rows take all vectors of a panel at once, for the sake of more independent sums; tall tiles take as many as the registers hold.
template <class T, int R>
__attribute__((noinline)) static void tile_of(const Tile& t) {
    constexpr int V = R * kPanelVectors <= T::kRows * T::kVectors ? kPanelVectors : T::kVectors;
    for (int vector = 0; vector < kPanelVectors; vector += V) T::template run<R, V>(t, vector);
}

template <class T, int R = 1>
static inline void run_tile(int rows, const Tile& t) {
    if constexpr (R < T::kRows)
        if (rows > R) return run_tile<T, R + 1>(rows, t);
    tile_of<T, R>(t);
}

// out = sums + bias, or out + (sums + bias); columns past n stay unwritten.
static inline void write_panel(const LinearArgs& a, int column, int row, int rows, const float* sums) {
    const int columns = a.weight->n - column < kPanel ? a.weight->n - column : kPanel;
    for (int r = 0; r < rows; ++r) {
        float* out = a.out + (row + r) * a.out_stride + column;
        for (int i = 0; i < columns; i += W) {
            vf y = load(sums + r * kPanel + i);
            if (a.bias) y = add(y, load_n(a.bias + column + i, columns - i));
            if (a.accumulate) y = add(load_n(out + i, columns - i), y);
            store_n(out + i, y, columns - i);
        }
    }
}

// The lines that write_panel() will write: a panel is a narrow column of a wide matrix, which no hardware foresees.
static inline void fetch_panel(const LinearArgs& a, int column, int row, int rows) {
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < kPanel && column + i < a.weight->n; i += 16)
            __builtin_prefetch(a.out + (row + r) * a.out_stride + column + i, 1);
}

// Rows that take their turns with a block of a panel while it is in the nearest caches.
#ifdef OCTAVO_HAS_AMX
constexpr int kRowBlock = 128;  // eight tiles of 16
#else
constexpr int kRowBlock = 72;
#endif
constexpr int64_t kBlockBytes = 40 << 10;

// One panel times at most kRowBlock rows: sums [rows][kPanel].
template <class T>
static void panel_sums(const PackedWeight& weight, int64_t panel, const std::byte* x, int64_t x_stride, int rows, float* sums) {
    const std::byte* w = weight.data + panel * weight.panel_bytes;
    const int64_t steps = steps_of(weight);
    const int tiles = (rows + T::kRows - 1) / T::kRows;
    const bool unpacks = T::kUnpacks && tiles >= kUnpackTiles;
    const int64_t bytes_read = steps * (unpacks ? T::kUnpackedBytes : T::kStepBytes);  // by a tile
    const int64_t blocks = tiles == 1 ? 1 : (bytes_read + kBlockBytes - 1) / kBlockBytes;
    const int64_t block = ((steps + blocks - 1) / blocks + 3) / 4 * 4;
    constexpr int64_t kRoom = (kBlockBytes / T::kUnpackedBytes + 4) / 4 * 4 * T::kUnpackedBytes;  // a block is a multiple of four steps
    alignas(64) std::byte unpacked[T::kUnpacks ? kRoom : 1];
    for (int64_t step = 0; step < steps; step += block) {
        const int64_t count = steps - step < block ? steps - step : block, bytes = count * T::kStepBytes;
        const std::byte* from = w + step * T::kStepBytes;
        if (unpacks) T::unpack(from, count, unpacked);
        for (int tile = 0; tile < tiles; ++tile) {
            const int first = rows * tile / tiles, last = rows * (tile + 1) / tiles;
            const Tile t{unpacks ? unpacked : from,
                         x + first * x_stride + step * T::kActStep,
                         x_stride,
                         unpacks ? count * T::kUnpackedSteps : count,
                         sums + first * kPanel,
                         step == 0,
                         weight.zero,
                         from + bytes + bytes * tile / tiles,
                         tiles > 1 ? bytes / tiles : 0};
            if (unpacks)
                run_tile<typename T::Unpacked>(last - first, t);
            else
                run_tile<T>(last - first, t);
        }
    }
}

}  // namespace
}  // namespace octavo::ISA
