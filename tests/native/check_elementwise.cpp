// Norms, rope, activations, sums, selection, soft caps, and the vector functions.
#include "isa_check.h"

namespace check {

using namespace octavo;

namespace {

constexpr int kRows = 9;

void check_math(Context& c) {
    for (MathFunction function : {MathFunction::exp, MathFunction::tanh}) {
        const bool is_exp = function == MathFunction::exp;
        Matrix x(1, 4001), got(1, 4001);
        const float range = is_exp ? 90.0f : 12.0f;
        for (int i = 0; i < x.columns; ++i) x.row(0)[i] = -range + 2.0f * range * static_cast<float>(i) / 4000.0f;
        x.row(0)[7] = -std::numeric_limits<float>::infinity();
        const Matrix before = got;
        c.table.math(function, x.row(0), x.columns, got.row(0));
        double worst = 0.0;
        for (int i = 0; i < x.columns; ++i) {
            const double at = static_cast<double>(x.row(0)[i]), clamped = std::fmin(at, static_cast<double>(88.3f));
            const double want = !is_exp ? std::tanh(at) : at < static_cast<double>(-87.336544f) ? 0.0 : std::exp(clamped);
            worst = std::fmax(worst, part_of(static_cast<double>(got.row(0)[i]), want, 4 * kEpsilon * std::fabs(want)));
        }
        c.report(is_exp ? "elementwise exp" : "elementwise tanh", worst, got.kept_outside(0, 1, before) ? "" : "wrote outside its rows");
    }
}

void check_norm(Context& c) {
    for (int groups : {1, 3})
        for (int size : {8, 64, 97, 577}) {
            Random random(static_cast<uint64_t>(size + groups));
            const Matrix x = Matrix::normal(kRows, groups * size, random), weight = Matrix::normal(1, size, random);
            const float offset = groups == 3 ? 1.0f : 0.0f;
            check_rows(
                c, "elementwise rms_norm " + std::to_string(groups) + " x " + std::to_string(size), Matrix(kRows, groups * size),
                [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
                    table.rms_norm({x.row(first), x.stride, weight.row(0), 1e-6f, offset, groups, size, out.row(first), out.stride},
                                   share(count, thread, threads));
                },
                [&](int, int, double want) { return kEpsilon * (4.0 + size / 16.0) * std::fabs(want); });
        }
}

void check_rope(Context& c) {
    for (int half : {8, 13, 16, 32, 48}) {
        Random random(static_cast<uint64_t>(half));
        const int heads = 3, head_dim = half == 48 ? 2 * half + 8 : 2 * half;
        std::vector<double> inv_freq(static_cast<size_t>(half));
        for (int i = 0; i < half; ++i) inv_freq[static_cast<size_t>(i)] = std::pow(10000.0, -static_cast<double>(i) / half);
        std::vector<int32_t> positions;
        for (int r = 0; r < kRows; ++r) positions.push_back(r < 3 ? r : random.below(1 << 20));
        const Matrix empty(kRows, 2 * half, 0);
        auto compute_angles = [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
            table.rope_angles({positions.data() + first, inv_freq.data(), 1.25, half, out.row(first)}, share(count, thread, threads));
        };
        check_rows(c, "elementwise rope_angles " + std::to_string(half), empty, compute_angles, [&](int, int, double) { return kEpsilon; });
        Matrix angles = empty;
        compute_angles(c.scalar, 0, kRows, angles, 0, 1);
        const Matrix x = Matrix::normal(kRows, heads * head_dim, random);
        for (bool interleaved : {false, true})
            check_rows(
                c,
                std::string("elementwise rope ") + (interleaved ? "interleaved " : "") + std::to_string(half) + " of " +
                    std::to_string(head_dim),
                x,
                [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
                    table.rope({angles.row(first), out.row(first), out.stride, heads, head_dim, half, interleaved},
                               share(count, thread, threads));
                },
                [&](int, int, double) { return 16 * kEpsilon; });
    }
}

void check_activation(Context& c) {
    constexpr const char* names[] = {"silu", "gelu", "gelu_tanh", "relu"};
    for (Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu})
        for (bool gated : {true, false}) {
            Random random(static_cast<uint64_t>(kind));
            const int size = 131;
            Matrix gate = Matrix::normal(kRows, size, random, 4.0f);
            const Matrix up = Matrix::normal(kRows, size, random);
            for (int i = 0; i < 40; ++i) gate.row(1)[i] = -100.0f + 5.0f * static_cast<float>(i);
            check_rows(
                c, std::string("elementwise ") + names[static_cast<int>(kind)] + (gated ? " gated" : ""), Matrix(kRows, size),
                [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
                    table.activation(
                        {kind, gate.row(first), gated ? up.row(first) : nullptr, gate.stride, up.stride, size, out.row(first), out.stride},
                        share(count, thread, threads));
                },
                [&](int r, int i, double) {
                    return 8 * kEpsilon *
                           std::fabs(static_cast<double>(gate.row(r)[i]) * (gated ? static_cast<double>(up.row(r)[i]) : 1.0));
                });
        }
}

void check_sums(Context& c) {
    for (int size : {1, 16, 45, 131}) {
        Random random(static_cast<uint64_t>(size));
        const Matrix a = Matrix::normal(kRows, size, random), b = Matrix::normal(kRows, size, random);
        for (bool sum : {true, false})
            check_rows(
                c, std::string("elementwise ") + (sum ? "add " : "scale ") + std::to_string(size), Matrix(kRows, size),
                [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
                    table.add({a.row(first), sum ? b.row(first) : nullptr, 0.37f, a.stride, size, out.row(first)},
                              share(count, thread, threads));
                },
                [](int, int, double) { return 0.0; });
        for (float cap : {0.0f, 30.0f})
            check_rows(
                c, std::string("elementwise ") + (cap > 0 ? "softcap " : "softcap off ") + std::to_string(size),
                Matrix::normal(kRows, size, random, 40.0f),
                [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
                    table.softcap({out.row(first), out.stride, count, size, cap, 0.7f}, thread, threads);
                },
                [](int, int, double want) { return 8 * kEpsilon * std::fabs(want); });
    }
}

void check_rows_moved(Context& c) {
    Random random(5);
    const int size = 77;
    const Matrix x = Matrix::normal(20, size, random);
    const std::vector<int32_t> index{3, 3, 0, 19, 7};
    check_rows(
        c, "elementwise select", Matrix(5, size, 0),
        [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
            table.select({x.row(0), x.stride, index.data() + first, size, out.row(first)}, share(count, thread, threads));
        },
        [](int, int, double) { return 0.0; });
}

}  // namespace

void check_elementwise(Context& c) {
    check_math(c);
    check_norm(c);
    check_rope(c);
    check_activation(c);
    check_sums(c);
    check_rows_moved(c);
}

}  // namespace check
