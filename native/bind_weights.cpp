// Packed weights, and the linear kernels called by themselves: for tests and benchmarks, each call being one parallel region.
#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "bind.h"
#include "layout.h"
#include "memory.h"
#include "pack.h"

namespace octavo {

namespace {

using Weight = std::shared_ptr<PackedWeightOwner>;
using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object new_array(T*& data, size_t rows, size_t columns) {
    data = new T[rows * columns];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(data, {rows, columns}, owner));
}

void check(const KernelTable* isa, const PackedWeightOwner& weight) {
    if (weight.table != isa)
        throw std::invalid_argument(std::string("A weight packed for ") + weight.table->name + " cannot be used by " + isa->name + ".");
}

using Job = std::tuple<std::string, std::string, Bytes, int64_t, int64_t, int>;

std::vector<Weight> pack_all(const KernelTable* isa, ThreadPool& pool,
                             const std::vector<std::pair<std::vector<Job>, std::optional<int>>>& list) {
    std::vector<PackOp> ops;
    for (const auto& [jobs, product] : list) {
        PackOp& op = ops.emplace_back();
        if (product) op.product = act_from(*product);
        for (const auto& [format, source, data, n, k, group] : jobs)
            op.jobs.push_back({format_of(format), source_of(source), reinterpret_cast<const std::byte*>(data.data()),
                               static_cast<int64_t>(data.nbytes()), n, k, group});
    }
    nb::gil_scoped_release release;
    std::vector<Weight> weights;
    for (auto& owner : pack(isa, pool, ops)) weights.push_back(std::make_shared<PackedWeightOwner>(std::move(owner)));
    return weights;
}

nb::object linear(const KernelTable* isa, ThreadPool& pool, const std::vector<Weight>& weights, Array2<const float> x,
                  const std::vector<std::optional<Array1<const float>>>& biases, std::optional<Array2<float>> into) {
    const int rows = static_cast<int>(x.shape(0)), k = static_cast<int>(x.shape(1));
    int64_t n = 0;
    require(!weights.empty(), "linear needs a weight");
    for (const auto& weight : weights) {
        check(isa, *weight);
        if (weight->packed.k != k)
            throw std::invalid_argument("x has " + std::to_string(k) + " columns, the weight takes " + std::to_string(weight->packed.k) +
                                        ".");
        n += weight->packed.n;
    }
    nb::object result;
    float* out = nullptr;
    if (into) {
        if (static_cast<int>(into->shape(0)) != rows || static_cast<int64_t>(into->shape(1)) != n)
            throw std::invalid_argument("accumulate_into must be [" + std::to_string(rows) + ", " + std::to_string(n) + "].");
        out = into->data();
        result = nb::cast(*into);
    } else {
        result = new_array(out, static_cast<size_t>(rows), static_cast<size_t>(n));
        std::memset(out, 0xff, static_cast<size_t>(rows * n) * sizeof(float));  // NaN: what a kernel forgets shows
    }
    std::vector<Memory> forms(kActs);
    std::vector<LinearArgs> list;
    std::vector<QuantizeArgs> acts;
    int64_t column = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const PackedWeight& w = weights[i]->packed;
        const Act act = isa->act_of(w.format);
        Memory& form = forms[static_cast<size_t>(act)];
        if (!form.bytes()) {
            form = Memory(std::max<int64_t>(1, isa->act_bytes(act, k) * rows));
            std::memset(form.data(), 0xff, static_cast<size_t>(form.bytes()));
            acts.push_back({act, x.data(), k, k, form.data()});
        }
        const float* bias = nullptr;
        if (i < biases.size() && biases[i]) {
            if (static_cast<int32_t>(biases[i]->shape(0)) != w.n)
                throw std::invalid_argument("A bias of " + std::to_string(biases[i]->shape(0)) + " values for " + std::to_string(w.n) +
                                            " outputs.");
            bias = biases[i]->data();
        }
        list.push_back({&w, form.data(), rows, bias, out + column, n, into.has_value()});
        column += w.n;
    }
    nb::gil_scoped_release release;
    pool.run(2, [&](int op, int i, int of) {
        if (op == 1) return isa->linear(list.data(), static_cast<int>(list.size()), i, of);
        for (const auto& act : acts) isa->quantize(act, share(rows, i, of));
    });
    nb::gil_scoped_acquire acquire;
    return result;
}

nb::object embed(const KernelTable* isa, ThreadPool& pool, const PackedWeightOwner& weight, Array1<const int32_t> ids, float scale) {
    check(isa, weight);
    const PackedWeight& w = weight.packed;
    for (size_t i = 0; i < ids.shape(0); ++i)
        if (ids.data()[i] < 0 || ids.data()[i] >= w.n)
            throw std::invalid_argument("Row " + std::to_string(ids.data()[i]) + " of a weight of " + std::to_string(w.n) + " rows.");
    float* out;
    nb::object result = new_array(out, ids.shape(0), static_cast<size_t>(w.k));
    const auto rows = static_cast<int64_t>(ids.shape(0));
    EmbedArgs args{&w, ids.data(), scale, out, w.k};
    nb::gil_scoped_release release;
    pool.run([&](int thread, int threads) { isa->embed(args, share(rows, thread, threads)); });
    nb::gil_scoped_acquire acquire;
    return result;
}

// The activations as the kernels of a format see them. The layouts are those of quantize() in kernels/quantize.inl.
nb::object quantize_roundtrip(const KernelTable* isa, ThreadPool& pool, const std::string& format, Array2<const float> x) {
    const Act act = isa->act_of(format_of(format));
    const int rows = static_cast<int>(x.shape(0)), k = static_cast<int>(x.shape(1));
    const int64_t row_bytes = isa->act_bytes(act, k);
    Memory form(std::max<int64_t>(1, row_bytes * rows));
    QuantizeArgs args{act, x.data(), k, k, form.data()};
    float* out;
    nb::object result = new_array(out, x.shape(0), x.shape(1));
    nb::gil_scoped_release release;
    pool.run([&](int thread, int threads) { isa->quantize(args, share(rows, thread, threads)); });
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < k; ++i) {
            const std::byte* p = form.data() + row * row_bytes;
            float& value = out[int64_t{row} * k + i];
            if (act == Act::f32 || (act == Act::bf16 && row_bytes == 4 * ((int64_t{k} + isa->lanes - 1) / isa->lanes * isa->lanes))) {
                std::memcpy(&value, p + 4 * i, 4);
            } else if (act == Act::bf16) {
                bf16 half;
                std::memcpy(&half, p + 2 * i, 2);
                value = bf16_to_f32(half);
            } else {
                constexpr int kWidePlace[4] = {0, 2, 1, 3};
                const int count = act == Act::s8 ? kActSpan : 32;  // that share what stands behind them
                const int64_t block = row_bytes / ((k + count - 1) / count), tail = act == Act::s8 ? sizeof(ActSpan) : sizeof(ActGroup);
                const bool wide = block - tail == 2 * count;
                const int at = i % 32, half = at / 16;
                const std::byte *values = p + i / count * block, *behind = values + block - tail;
                values += i % count / 32 * (wide ? 64 : 32);
                int16_t word;
                std::memcpy(&word, values + 2 * (at / 4 * 4 + kWidePlace[at % 4]), 2);
                const int place = act == Act::q8 ? place_of(at, isa->paired_halves) : at;
                const int q = wide ? word : static_cast<int8_t>(values[place]);
                if (act == Act::s8) {
                    ActSpan span;
                    std::memcpy(&span, behind, sizeof span);
                    value = span.scale * static_cast<float>(q);
                } else {
                    ActGroup group;
                    std::memcpy(&group, behind, sizeof group);
                    value = group.half_scale[half] * static_cast<float>(wide ? q / group.factor[half] : q);
                }
            }
        }
    nb::gil_scoped_acquire acquire;
    return result;
}

nb::object unpack(const PackedWeightOwner& weight) {
    const PackedWeight& w = weight.packed;
    float* out;
    nb::object result = new_array(out, static_cast<size_t>(w.n), static_cast<size_t>(w.k));
    std::vector<int32_t> ids(static_cast<size_t>(w.n));
    for (int32_t i = 0; i < w.n; ++i) ids[static_cast<size_t>(i)] = i;
    EmbedArgs args{&w, ids.data(), 1.0f, out, w.k};
    nb::gil_scoped_release release;
    weight.table->embed(args, {0, w.n});
    nb::gil_scoped_acquire acquire;
    return result;
}

}  // namespace

void bind_weights(nb::module_& m) {
    nb::enum_<Format>(m, "Format", nb::is_arithmetic())
        .value("f32", Format::f32)
        .value("f16", Format::f16)
        .value("bf16", Format::bf16)
        .value("i2", Format::i2)
        .value("i3", Format::i3)
        .value("i4", Format::i4)
        .value("i5", Format::i5)
        .value("i6", Format::i6)
        .value("i8", Format::i8)
        .value("i8s", Format::i8s);

    nb::class_<PackedWeightOwner>(m, "PackedWeight", "A weight [n, k] in the layout of one level's kernels.")
        .def_prop_ro("format", [](const PackedWeightOwner& w) { return w.packed.format; })
        .def_prop_ro("isa", [](const PackedWeightOwner& w) { return w.table->name; })
        .def_prop_ro("n", [](const PackedWeightOwner& w) { return w.packed.n; })
        .def_prop_ro("k", [](const PackedWeightOwner& w) { return w.packed.k; })
        .def_prop_ro("bytes", [](const PackedWeightOwner& w) { return w.packed.bytes; });

    m.def(
        "default_format", [](const std::string& source) { return std::string(name_of(default_format(source_of(source)))); },
        nb::arg("source"), "The packed format that keeps every bit of a file's tensor type.");
    m.def(
        "pack",
        [](const KernelTable* isa, ThreadPool& pool, const std::string& format, const std::string& source, const Bytes& data, int64_t n,
           int64_t k, int group) { return pack_all(isa, pool, {{{{format, source, data, n, k, group}}, {}}})[0]; },
        nb::arg("isa"), nb::arg("pool"), nb::arg("format"), nb::arg("source"), nb::arg("data").noconvert(), nb::arg("n"), nb::arg("k"),
        nb::arg("group") = 0,
        "Packs data (uint8, the bytes of a row-major [n, k] tensor of type `source`); format i8s, and i4 with a group of 32, 64 or 128, "
        "quantise it. ValueError where type, format or size do not fit.");
    m.def("pack_all", &pack_all, nb::arg("isa"), nb::arg("pool"), nb::arg("ops").noconvert(),
          "Packs each (format, source, data, n, k, group) of each (jobs, product) as pack() does. The jobs of an op are what it reads "
          "together: panels are written by the threads that will read them. product: the form that gated_linear prepares, or None. The "
          "weights share their memory: it is freed with the last of them.");
    m.def(
        "columns_of",
        [](const std::vector<Weight>& weights, std::optional<int> product, int number, int shares) {
            require(shares >= 1 && number >= 0 && number < shares, "there is no such share");
            std::vector<const PackedWeight*> list;
            for (const Weight& weight : weights) list.push_back(&weight->packed);
            std::vector<std::pair<int64_t, int64_t>> columns;
            for (Range panels : panels_of(list, product ? std::optional(act_from(*product)) : std::nullopt, number, shares)) {
                const PackedWeight& w = *list[columns.size()];
                columns.emplace_back(panels.begin * w.panel, std::min<int64_t>(panels.end * w.panel, w.n));
            }
            return columns;
        },
        nb::arg("weights"), nb::arg("product").none(), nb::arg("number"), nb::arg("shares"),
        "The outputs (first, end) of each weight whose panels pack_all() gives to a thread: those of its share of the op.");
    m.def("unpack", &unpack, nb::arg("weight"), "The values that the kernels see: float32 [n, k].");

    m.def("linear", &linear, nb::arg("isa"), nb::arg("pool"), nb::arg("weights"), nb::arg("x").noconvert(),
          nb::arg("biases") = std::vector<std::optional<Array1<const float>>>(), nb::arg("accumulate_into").noconvert() = nb::none(),
          "x [rows, k] times each weight transposed, plus its bias, side by side: float32 [rows, sum of n]; added to accumulate_into where "
          "given.");
    m.def(
        "linear",
        [](const KernelTable* isa, ThreadPool& pool, const Weight& weight, Array2<const float> x, std::optional<Array1<const float>> bias,
           std::optional<Array2<float>> into) { return linear(isa, pool, {weight}, x, {bias}, into); },
        nb::arg("isa"), nb::arg("pool"), nb::arg("weight"), nb::arg("x").noconvert(), nb::arg("bias").noconvert() = nb::none(),
        nb::arg("accumulate_into").noconvert() = nb::none());
    m.def("quantize_roundtrip", &quantize_roundtrip, nb::arg("isa"), nb::arg("pool"), nb::arg("format"), nb::arg("x").noconvert(),
          "x float32 [rows, k] as the kernels of a packed format see it.");
    m.def("embed", &embed, nb::arg("isa"), nb::arg("pool"), nb::arg("weight"), nb::arg("ids").noconvert(), nb::arg("scale") = 1.0f,
          "Rows `ids` (int32) of a packed weight, times scale: float32 [rows, k].");
}

}  // namespace octavo
