// Vector functions written with the vocabulary alone.
namespace octavo::ISA {

// exp(x) by 2^n * p(r), r in [-ln2/2, ln2/2], p of degree 6: relative error below 2e-7. exp(x < -87.3) is 0, exp(-inf) is 0;
// arguments are clamped at 88.3, so that 2^n stays finite. NaN stays NaN: max and min return their second argument for it.
static inline vf exp(vf x) {
    const vf low = set1(-87.336544f);
    vf clamped = min(set1(88.3f), max(low, x));
    const vf shift = set1(12582912.0f + 127.0f);  // leaves n + 127, the exponent of 2^n, in the low bits
    vf t = fma(clamped, set1(1.44269504f), shift);
    vf f = sub(t, shift);
    vf r = fma(f, set1(-0.693359375f), clamped);
    r = fma(f, set1(2.12194440e-4f), r);
    vf p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    vf result = mul(p, low_bits_as_exponent(t));
    return select_lt(x, low, zero(), result);
}

// exp(x) for x <= 0 as 2^(n + f), by a polynomial of degree 5 in f: relative error below 2e-7 - x / 2^26, and 1 at 0. Its range ends
// between 2^-126 and half of that, then it is 0: 2^-127 is by its bits. NaN stays NaN.
static inline vf exp_to_one(vf x) {
    const vf shift = set1(12582912.0f + 127.0f);  // as in exp()
    x = max(set1(-88.0296919f), x);
    const vf t = fma(x, set1(1.44269504f), shift);
    const vf f = fma(x, set1(1.44269504f), sub(shift, t));
    vf p = set1(1.3264727e-3f);
    p = fma(p, f, set1(9.671513e-3f));
    p = fma(p, f, set1(5.5507336e-2f));
    p = fma(p, f, set1(2.4022242e-1f));
    p = fma(p, f, set1(6.9314700e-1f));
    p = fma(p, f, set1(1.0f));
    return mul(p, low_bits_as_exponent(t));
}

// tanh(x) = 1 - 2 / (exp(2x) + 1), by the odd polynomial near zero, where that difference would cancel.
static inline vf tanh(vf x) {
    vf magnitude = min(set1(20.0f), abs(x));
    vf large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(magnitude, magnitude)), set1(1.0f))));
    vf square = mul(x, x);
    vf p = set1(-0.00886323f);
    p = fma(p, square, set1(0.02186948f));
    p = fma(p, square, set1(-0.05396825f));
    p = fma(p, square, set1(0.13333333f));
    p = fma(p, square, set1(-0.33333334f));
    vf small = fma(mul(p, square), x, x);
    vf signed_large = select_lt(x, zero(), sub(zero(), large), large);
    return select_lt(magnitude, set1(0.25f), small, signed_large);
}

static void math(MathFunction function, const float* x, int64_t size, float* out) {
    constexpr int kChains = 12;
    vf sum[kChains];
    for (int c = 0; c < kChains; ++c) sum[c] = zero();
    if (function == MathFunction::sum) {
        for (int64_t i = 0; i + kChains * W <= size; i += kChains * W) {
            for (int ahead = 0; ahead < kChains * W; ahead += 16)
                __builtin_prefetch(x + i + ahead + 1024);  // faster than the hardware's alone
            for (int c = 0; c < kChains; ++c) sum[c] = add(sum[c], load(x + i + c * W));
        }
    } else if (function == MathFunction::multiply_add) {
        const vf factor = load(x);
        for (int64_t i = 0; i < size; i += kChains)
            for (int c = 0; c < kChains; ++c) sum[c] = fma(factor, factor, sum[c]);
    } else {
        for (int64_t i = 0; i < size; i += W) {
            int n = size - i < W ? static_cast<int>(size - i) : W;
            vf y = load_n(x + i, n);
            store_n(out + i, function == MathFunction::exp ? exp(y) : tanh(y), n);
        }
        return;
    }
    for (int c = 1; c < kChains; ++c) sum[0] = add(sum[0], sum[c]);
    store(out, sum[0]);
}

}  // namespace octavo::ISA
