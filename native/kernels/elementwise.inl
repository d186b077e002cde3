// Row-wise kernels: norms, rope, activations, sums, selection. All are bound by memory or by latency, never by arithmetic.
#include <cmath>

namespace octavo::ISA {

static inline float square_sum(const float* x, int size) {
    vf sum = zero();
    int i = 0;
    for (; i + W <= size; i += W) {
        vf v = load(x + i);
        sum = fma(v, v, sum);
    }
    if (i < size) {
        vf v = load_n(x + i, size - i);
        sum = fma(v, v, sum);
    }
    return reduce_add(sum);
}

static void rms_norm(const NormArgs& a, Range rows) {
    vf offset = set1(a.offset);
    for (int64_t unit = rows.begin * a.groups; unit < rows.end * a.groups; ++unit) {
        int64_t row = unit / a.groups, group = unit % a.groups;
        const float* x = a.x + row * a.x_stride + group * a.size;
        float* out = a.out + row * a.out_stride + group * a.size;
        vf factor = set1(1.0f / std::sqrt(square_sum(x, a.size) / static_cast<float>(a.size) + a.epsilon));
        int i = 0;
        for (; i + W <= a.size; i += W) store(out + i, mul(mul(load(x + i), factor), add(load(a.weight + i), offset)));
        if (int rest = a.size - i; rest > 0)
            store_n(out + i, mul(mul(load_n(x + i, rest), factor), add(load_n(a.weight + i, rest), offset)), rest);
    }
}

// Angles in double: positions reach 10^6, where a float32 product would be off by 0.06 radians.
static void rope_angles(const RopeAnglesArgs& a, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        float* out = a.out + row * 2 * a.half;
        for (int i = 0; i < a.half; ++i) {
            double angle = a.positions[row] * a.inv_freq[i];
            out[i] = static_cast<float>(std::cos(angle) * a.scale);
            out[a.half + i] = static_cast<float>(std::sin(angle) * a.scale);
        }
    }
}

static void rope(const RopeArgs& a, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        const float* cosine = a.angles + row * 2 * a.half;
        const float* sine = cosine + a.half;
        for (int head = 0; head < a.heads; ++head) {
            float* x = a.x + row * a.x_stride + int64_t{head} * a.head_dim;
            if (a.interleaved) {
                for (int i = 0; i < a.half; ++i) {
                    float even = x[2 * i], odd = x[2 * i + 1];
                    x[2 * i] = even * cosine[i] - odd * sine[i];
                    x[2 * i + 1] = odd * cosine[i] + even * sine[i];
                }
                continue;
            }
            float* y = x + a.half;
            int i = 0;
            for (; i < a.half; i += W) {
                int n = a.half - i < W ? a.half - i : W;
                vf first = load_n(x + i, n), second = load_n(y + i, n);
                vf c = load_n(cosine + i, n), s = load_n(sine + i, n);
                store_n(x + i, sub(mul(first, c), mul(second, s)), n);
                store_n(y + i, add(mul(second, c), mul(first, s)), n);
            }
        }
    }
}

static inline vf activate(Activation kind, vf x) {
    const vf one = set1(1.0f), half = set1(0.5f);
    switch (kind) {
        case Activation::silu:
            return div(x, add(one, exp(sub(zero(), x))));
        case Activation::gelu_tanh: {
            vf inner = mul(mul(set1(0.79788456f), x), fma(mul(set1(0.044715f), x), x, one));
            return mul(mul(half, x), add(one, tanh(inner)));
        }
        case Activation::relu:
            return max(x, zero());
        case Activation::gelu: {  // erf has no short polynomial: lane by lane
            float lanes[W];
            store(lanes, x);
            for (float& lane : lanes) lane = 0.5f * lane * (1.0f + std::erf(lane * 0.70710678f));
            return load(lanes);
        }
    }
    return x;
}

static void activation(const ActivationArgs& a, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        const float* gate = a.gate + row * a.gate_stride;
        const float* up = a.up ? a.up + row * a.up_stride : nullptr;
        float* out = a.out + row * a.out_stride;
        for (int i = 0; i < a.size; i += W) {
            int n = a.size - i < W ? a.size - i : W;
            vf y = activate(a.kind, load_n(gate + i, n));
            store_n(out + i, up ? mul(y, load_n(up + i, n)) : y, n);
        }
    }
}

static void add_rows(const AddArgs& a, Range rows) {
    vf factor = set1(a.factor);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        int64_t at = row * a.stride;
        for (int i = 0; i < a.size; i += W) {
            int n = a.size - i < W ? a.size - i : W;
            vf x = load_n(a.a + at + i, n);
            store_n(a.out + at + i, a.b ? add(x, load_n(a.b + at + i, n)) : mul(x, factor), n);
        }
    }
}

static void select_rows(const SelectArgs& a, Range rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row)
        std::memcpy(a.out + row * a.size, a.x + a.index[row] * a.stride, sizeof(float) * static_cast<size_t>(a.size));
}

static void softcap(const SoftcapArgs& a, int thread, int threads) {
    // Shared out by columns too: a single row of a quarter of a million logits is work for every thread. W-aligned cuts keep lanes fixed.
    int64_t vectors = (a.size + W - 1) / W;
    Range range = share(vectors * a.rows, thread, threads);
    vf scale = set1(a.cap > 0.0f ? a.scale / a.cap : a.scale), cap = set1(a.cap);
    for (int64_t unit = range.begin; unit < range.end; ++unit) {
        int i = static_cast<int>(unit % vectors) * W;
        float* x = a.x + unit / vectors * a.stride + i;
        int n = a.size - i < W ? a.size - i : W;
        vf y = mul(load_n(x, n), scale);
        store_n(x, a.cap > 0.0f ? mul(tanh(y), cap) : y, n);
    }
}

}  // namespace octavo::ISA
