// Linear layers and embeddings, for every type of tensor that pack() reads, packed for each of the two tables.
#include <cstring>
#include <utility>

#include "isa_check.h"
#include "pack.h"

namespace check {

using namespace octavo;

namespace {

struct SourceShape {
    Source source;
    const char* name;
    int values, bytes;         // of a block
    int scale_at, minimum_at;  // where a block keeps its float16 scales; -1: none
    Format target = default_format(source);
    int group = 0;  // of i4 that is quantised at load
};

const SourceShape kSources[] = {
    {Source::f32, "f32", 1, 4, -1, -1},
    {Source::f16, "f16", 1, 2, -1, -1},
    {Source::bf16, "bf16", 1, 2, -1, -1},
    {Source::q4_0, "q4_0", 32, 18, 0, -1},
    {Source::q4_1, "q4_1", 32, 20, 0, 2},
    {Source::q5_0, "q5_0", 32, 22, 0, -1},
    {Source::q5_1, "q5_1", 32, 24, 0, 2},
    {Source::q8_0, "q8_0", 32, 34, 0, -1},
    {Source::q2_k, "q2_k", 256, 84, 80, 82},
    {Source::q3_k, "q3_k", 256, 110, 108, -1},
    {Source::q4_k, "q4_k", 256, 144, 0, 2},
    {Source::q5_k, "q5_k", 256, 176, 0, 2},
    {Source::q6_k, "q6_k", 256, 210, 208, -1},
    {Source::f32, "int8", 1, 4, -1, -1, Format::i8s},
    {Source::f32, "int4", 1, 4, -1, -1, Format::i4, 32},
    {Source::f32, "int4 64", 1, 4, -1, -1, Format::i4, 64},
    {Source::f32, "int4 128", 1, 4, -1, -1, Format::i4, 128},
};

const SourceShape& shape_of(const std::string& name) {
    const SourceShape* shape = kSources;
    while (shape->name != name) ++shape;
    return *shape;
}

// A tensor [n, k] as its file has it: any bytes, but scales of a sane size.
std::vector<std::byte> random_tensor(const SourceShape& shape, int n, int k, Random& random) {
    std::vector<std::byte> bytes(static_cast<size_t>(n) * static_cast<size_t>(k / shape.values * shape.bytes));
    auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(shape.bytes)) {
        if (shape.source == Source::f32) put(block, random.normal());
        if (shape.source == Source::f16) put(block, f32_to_f16(random.normal()));
        if (shape.source == Source::bf16) put(block, f32_to_bf16(random.normal()));
        if (shape.values == 1) continue;
        for (int i = 0; i < shape.bytes; ++i) bytes[block + static_cast<size_t>(i)] = static_cast<std::byte>(random.bits());
        put(block + static_cast<size_t>(shape.scale_at), f32_to_f16(random.uniform(-0.05f, 0.05f)));
        if (shape.minimum_at >= 0) put(block + static_cast<size_t>(shape.minimum_at), f32_to_f16(random.uniform(-0.5f, 0.5f)));
    }
    return bytes;
}

struct Weights {  // one tensor, packed for either table
    PackedWeightOwner table, scalar;
    const PackedWeight& of(const KernelTable& which) const { return table.table == &which ? table.packed : scalar.packed; }
};

Weights pack_both(Context& c, const SourceShape& shape, int n, int k, Random& random) {
    ThreadPool pool(1);
    const auto bytes = random_tensor(shape, n, k, random);
    const auto size = static_cast<int64_t>(bytes.size());
    auto pack_for = [&](const KernelTable& table) {
        const PackOp op{{{shape.target, shape.source, bytes.data(), size, n, k, shape.group}}};
        return std::move(pack(&table, pool, {&op, 1})[0]);
    };
    return {pack_for(c.table), pack_for(c.scalar)};
}

std::vector<std::byte> quantized(const KernelTable& table, Format format, const Matrix& x, int threads) {
    const Act act = table.act_of(format);
    const int64_t row_bytes = table.act_bytes(act, x.columns);
    std::vector<std::byte> out(static_cast<size_t>(x.rows * row_bytes), std::byte{0xff});
    for (int thread = 0; thread < threads; ++thread)
        table.quantize({act, x.row(0), x.stride, x.columns, out.data()}, share(x.rows, thread, threads));
    return out;
}

// Sums of |x| by row, and the largest |w| by column.
std::vector<double> row_sums(const Matrix& x) {
    std::vector<double> sums;
    for (int r = 0; r < x.rows; ++r) {
        sums.push_back(0.0);
        for (int i = 0; i < x.columns; ++i) sums.back() += std::fabs(static_cast<double>(x.row(r)[i]));
    }
    return sums;
}
std::vector<double> row_maxima(const Matrix& x) {
    std::vector<double> maxima;
    for (int r = 0; r < x.rows; ++r) {
        maxima.push_back(0.0);
        for (int i = 0; i < x.columns; ++i) maxima.back() = std::fmax(maxima.back(), std::fabs(static_cast<double>(x.row(r)[i])));
    }
    return maxima;
}

// Bochs 3.0 takes the signed bytes of a product of tiles for unsigned ones: under emulation, activations that may get there have no sign.
Matrix activations(const Context& c, Format format, int rows, int k, Random& random) {
    Matrix x = Matrix::normal(rows, k, random);
    for (int r = 0; r < rows; ++r)
        for (int i = 0; i < k; ++i)
            if (c.emulated && format == Format::i8s) x.row(r)[i] = std::fabs(x.row(r)[i]);
    return x;
}

// Both tables quantise alike, so that they differ by the rounding of their float sums only: at most half an epsilon of the largest partial
// sum in each step. The terms of a sum with minima, or with a zero point, may be four times what they add up to.
void check_source(Context& c, const SourceShape& shape, int rows, int n, int k) {
    Random random(static_cast<uint64_t>(n * 1000 + k) + static_cast<uint64_t>(shape.source));
    const Weights weights = pack_both(c, shape, n, k, random);
    const std::string name = std::string(shape.name) + " " + std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k);

    std::vector<int32_t> ids;
    for (int r = 0; r < n; ++r) ids.push_back(n - 1 - r);
    auto embed = [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
        table.embed({&weights.of(table), ids.data() + first, 0.5f, out.row(first), out.stride}, share(count, thread, threads));
    };
    const Matrix empty(n < 20 ? n : 20, k);
    check_rows(c, "linear embed " + name, empty, embed, [](int, int, double) { return 0.0; });

    Matrix dequantized(n, k);
    embed(c.scalar, 0, n, dequantized, 0, 1);
    const std::vector<double> largest = row_maxima(dequantized);  // of 0.5 w, in reverse
    const Format format = shape.target;
    const Matrix x = activations(c, format, rows, k, random), bias = Matrix::normal(1, n, random);
    const std::vector<double> sums = row_sums(x);
    const std::vector<std::byte> prepared[2] = {quantized(c.table, format, x, 1), quantized(c.scalar, format, x, 1)};
    if (quantized(c.table, format, x, 2) != prepared[0]) c.report("linear quantize " + name, 0.0, "other bits with 2 threads");

    for (int variant = 0; variant < 3; ++variant) {
        const bool accumulate = variant == 2;
        check_rows(
            c,
            std::string("linear ") +
                (accumulate ? "accumulated "
                 : variant  ? "biased "
                            : "") +
                name,
            accumulate ? Matrix::normal(rows, n, random) : Matrix(rows, n),
            [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
                const PackedWeight& w = weights.of(table);
                const int64_t row_bytes = table.act_bytes(table.act_of(format), k);
                const std::byte* act = prepared[&table == &c.scalar].data() + first * row_bytes;
                const LinearArgs args{&w, act, count, variant ? bias.row(0) : nullptr, out.row(first), out.stride, accumulate};
                table.linear(&args, 1, thread, threads);
            },
            [&](int r, int i, double) {
                const double scale = 2.0 * largest[static_cast<size_t>(n - 1 - i)] * sums[static_cast<size_t>(r)];
                return kEpsilon * (0.5 * k / 4 + 16.0) * (scale + 4.0);
            });
    }
}

// Several weights in one call, shared out together, have the bits of each by itself.
void check_list(Context& c) {
    Random random(77);
    const int k = 256, rows = 5, sizes[] = {70, 9, 200};
    const SourceShape* shapes[] = {&shape_of("q4_0"), &shape_of("q8_0"), &shape_of("q6_k")};
    const Matrix x = Matrix::normal(rows, k, random);
    std::vector<Weights> weights;
    std::vector<Matrix> alone, together;
    std::vector<std::vector<std::byte>> prepared;
    std::vector<LinearArgs> list;
    for (int i = 0; i < 3; ++i) {
        weights.push_back(pack_both(c, *shapes[i], sizes[i], k, random));
        alone.emplace_back(rows, sizes[i]);
        together.emplace_back(rows, sizes[i]);
        prepared.push_back(quantized(c.table, shapes[i]->target, x, 1));
    }
    std::string broken;
    for (int threads = 1; threads <= 4; ++threads) {
        list.clear();
        for (size_t i = 0; i < 3; ++i) {
            const LinearArgs one{&weights[i].of(c.table), prepared[i].data(), rows, nullptr, alone[i].row(0), alone[i].stride, false};
            c.table.linear(&one, 1, 0, 1);
            list.push_back(one);
            list.back().out = together[i].row(0);
        }
        for (int thread = 0; thread < threads; ++thread) c.table.linear(list.data(), 3, thread, threads);
        for (size_t i = 0; i < 3; ++i)
            for (int r = 0; r < rows; ++r)
                if (!alone[i].same_row(r, together[i])) broken = "other bits with " + std::to_string(threads) + " threads";
    }
    c.report("linear of three weights", 0.0, broken);
}

// The gate in the epilogue, as float32: its error is that of the two products, through a function whose slope is at most 1.1.
void check_gated(Context& c, const SourceShape& shape, int n) {
    Random random(static_cast<uint64_t>(n));
    const int k = 512, rows = 75;
    const Weights gate = pack_both(c, shape, n, k, random), up = pack_both(c, shape, n, k, random);
    const Format format = shape.target;
    const Matrix x = activations(c, format, rows, k, random), bias = Matrix::normal(2, n, random);
    const std::vector<std::byte> prepared[2] = {quantized(c.table, format, x, 1), quantized(c.scalar, format, x, 1)};
    check_rows(
        c, std::string("linear gated ") + shape.name + " " + std::to_string(n), Matrix(rows, n, 0),
        [&](const KernelTable& table, int first, int count, Matrix& out, int thread, int threads) {
            const std::byte* act = prepared[&table == &c.scalar].data() + first * table.act_bytes(table.act_of(format), k);
            table.gated_linear({Activation::silu, &gate.of(table), &up.of(table), act, act, bias.row(0), bias.row(1), count, Act::f32,
                                reinterpret_cast<std::byte*>(out.row(first))},
                               thread, threads);
        },
        [&](int, int, double want) { return kEpsilon * k * (4.0 + 4.0 * std::fabs(want)); });
}

// Whether there are levels that take more than 75 rows to a block.
bool has_tall_tiles(Format format) { return format == Format::bf16 || format == Format::i8s; }

}  // namespace

void check_linear(Context& c) {
    for (const SourceShape& shape : kSources) {
        if (c.table.panel_of(shape.target) == 0) continue;
        const int group = shape.group ? shape.group : shape.values;
        const int k[2] = {group == 1 ? 71 : group, group == 1 ? 290 : group == 32 ? 544 : 1024};
        check_source(c, shape, 13, 131, k[0]);
        check_source(c, shape, 13, 33, k[1]);
        check_source(c, shape, has_tall_tiles(shape.target) ? 131 : 75, 1, k[0]);
    }
    check_source(c, shape_of("int8"), 21, 1, 2100);  // more spans than a tile takes before the next rows
    check_list(c);
    check_gated(c, shape_of("f32"), 70);
    check_gated(c, shape_of("q4_1"), 131);
    check_gated(c, shape_of("int8"), 70);
}

}  // namespace check
