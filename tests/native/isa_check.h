// What the checks of a kernel table against the scalar one share: seeded inputs, outputs inside margins, comparisons, lines of report.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "ops.h"

namespace check {

using octavo::KernelTable;

constexpr double kEpsilon = 1.0 / (1 << 23);
constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Context {
    const KernelTable& table;   // under test
    const KernelTable& scalar;  // its peer, in plain C++
    std::string only;           // checks whose names begin so
    bool emulated;              // by a Bochs that rounds half a unit of float16 away from zero, not to even
    int passed = 0, failed = 0;

    bool wants(const std::string& group) const { return group.rfind(only, 0) == 0 || only.rfind(group, 0) == 0; }
    // `worst` is the largest error as a part of its tolerance; `broken` names a law that did not hold, if any.
    void report(const std::string& name, double worst, const std::string& broken) {
        const bool fine = worst <= 1.0 && broken.empty();
        ++(fine ? passed : failed);
        std::printf("%s %s %s: largest error %.3g of the tolerance%s%s\n", fine ? "ok  " : "FAIL", table.name, name.c_str(), worst,
                    broken.empty() ? "" : "; ", broken.c_str());
    }
};

class Random {  // splitmix64
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t bits() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
    float uniform(float low, float high) { return low + (high - low) * static_cast<float>(bits() >> 40) * 0x1p-24f; }
    float normal() { return uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1); }  // variance 1, near enough

  private:
    uint64_t state_;
};

// Float32 [rows, columns] with room behind every row and around all of it. All of it is a NaN of its own bits until written.
class Matrix {
  public:
    Matrix(int rows, int columns, int gap = 3)
        : rows(rows), columns(columns), stride(columns + gap), cells_(static_cast<size_t>(2 * kMargin + rows * (columns + gap))) {
        for (float& cell : cells_) cell = octavo::bits_to_f32(kUnwritten);
    }
    static Matrix normal(int rows, int columns, Random& random, float factor = 1.0f) {
        Matrix m(rows, columns);
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < columns; ++c) m.row(r)[c] = factor * random.normal();
        return m;
    }

    float* row(int r) { return cells_.data() + kMargin + r * stride; }
    const float* row(int r) const { return cells_.data() + kMargin + r * stride; }

    // Whether nothing outside [first, first + count) of the rows, or behind a row, was written.
    bool kept_outside(int first, int count, const Matrix& before) const {
        const int begin = kMargin, size = static_cast<int>(cells_.size());
        for (int i = 0; i < size; ++i) {
            const int r = (i - begin) / stride;
            const bool inside = i >= begin && r >= first && r < first + count && (i - begin) % stride < columns;
            if (!inside &&
                octavo::f32_to_bits(cells_[static_cast<size_t>(i)]) != octavo::f32_to_bits(before.cells_[static_cast<size_t>(i)]))
                return false;
        }
        return true;
    }
    bool same_row(int r, const Matrix& other) const {
        return std::memcmp(row(r), other.row(r), sizeof(float) * static_cast<size_t>(columns)) == 0;
    }

    int rows, columns, stride;

  private:
    static constexpr int kMargin = 64;
    static constexpr uint32_t kUnwritten = 0x7fc0deadu;
    std::vector<float> cells_;
};

// |got - want| as a part of the tolerance; NaN is an infinite error unless both are.
inline double part_of(double got, double want, double tolerance) {
    if (got == want || (std::isnan(got) && std::isnan(want))) return 0.0;
    const double part = std::fabs(got - want) / tolerance;
    return part >= 0.0 ? part : kInfinite;
}

// Checks a kernel whose output has rows: call(table, first, count, out, thread, threads) computes rows [first, first + count) of `out`,
// which is `before` until then. Against the scalar table within tolerance(row, column, wanted value); and law L1: alone, in other company,
// or shared out among threads, a row has the same bits.
template <class Call, class Tolerance>
void check_rows(Context& c, const std::string& name, const Matrix& before, Call call, Tolerance tolerance) {
    auto compute = [&](const KernelTable& table, int first, int count, int threads) {
        Matrix out = before;
        for (int thread = 0; thread < threads; ++thread) call(table, first, count, out, thread, threads);
        return out;
    };
    const Matrix want = compute(c.scalar, 0, before.rows, 1), got = compute(c.table, 0, before.rows, 1);
    double worst = 0.0;
    for (int r = 0; r < before.rows; ++r)
        for (int i = 0; i < before.columns; ++i)
            worst = std::fmax(worst, part_of(got.row(r)[i], want.row(r)[i], tolerance(r, i, static_cast<double>(want.row(r)[i]))));
    std::string broken;
    auto law = [&](bool holds, const std::string& what) {
        if (!holds && broken.empty()) broken = what;
    };
    law(got.kept_outside(0, before.rows, before), "wrote outside its rows");
    for (int threads = 2; threads <= 3; ++threads) {
        const Matrix shared = compute(c.table, 0, before.rows, threads);
        for (int r = 0; r < before.rows; ++r) law(shared.same_row(r, got), "other bits with " + std::to_string(threads) + " threads");
    }
    for (int count = 1; count <= 7 && count <= before.rows; ++count)
        for (int first = 0; first + count <= before.rows; first += count == 1 ? 1 : before.rows) {
            const Matrix part = compute(c.table, first, count, 1 + count % 2);
            for (int r = first; r < first + count; ++r)
                law(part.same_row(r, got), "other bits in a call of " + std::to_string(count) + " rows");
            law(part.kept_outside(first, count, before), "wrote outside its " + std::to_string(count) + " rows");
        }
    c.report(name, worst, broken);
}

void check_elementwise(Context&);
void check_linear(Context&);
void check_attention(Context&);
void check_sampler(Context&);

}  // namespace check
