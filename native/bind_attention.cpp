#include "bind.h"

#include <time.h>

#include <algorithm>
#include <stdexcept>

#include "kv_cache.h"

namespace octavo {
namespace {

using Floats = Array2<const float>;
using Out = nb::ndarray<nb::numpy, float>;

Out new_floats(std::vector<size_t> shape, float fill) {
    size_t size = 1;
    for (size_t extent : shape) size *= extent;
    auto* data = new float[size];
    std::fill_n(data, size, fill);
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Out(data, shape.size(), shape.data(), owner);
}

void check_blocks(const KVCache& cache, const Array1<const int32_t>& ids) {
    for (size_t i = 0; i < ids.shape(0); ++i) require(ids(i) >= 0 && ids(i) < cache.num_blocks(), "a block id lies outside the cache");
}

StoreArgs store_args(const KVCache& cache, int layer, const Floats& k, const Floats& v, const Array1<const int64_t>& slots) {
    const auto width = static_cast<size_t>(cache.kv_heads()) * cache.head_dim();
    require(layer >= 0 && layer < cache.num_layers(), "layer lies outside the cache");
    require(k.shape(1) == width && v.shape(1) == width, "k and v must be [tokens, kv_heads * head_dim]");
    require(k.shape(0) == slots.shape(0) && v.shape(0) == slots.shape(0), "k, v and slot_mapping must have a row for each token");
    for (size_t i = 0; i < slots.shape(0); ++i)
        require(slots(i) >= -1 && slots(i) < cache.num_blocks() * cache.block_size(), "a slot lies outside the cache");
    return {k.data(), v.data(), static_cast<int64_t>(width), slots.data(), cache.layer(layer)};
}

void store(const KernelTable& isa, ThreadPool& pool, const KVCache& cache, int layer, const Floats& k, const Floats& v,
           const Array1<const int64_t>& slot_mapping) {
    const StoreArgs args = store_args(cache, layer, k, v, slot_mapping);
    nb::gil_scoped_release release;
    const auto rows = static_cast<int64_t>(slot_mapping.shape(0));
    pool.run([&](int thread, int threads) { isa.store(args, share(rows, thread, threads)); });
}

Out attention(const KernelTable& isa, ThreadPool& pool, const KVCache& cache, int layer, const Floats& q, const Floats& k, const Floats& v,
              const Array1<const int64_t>& slot_mapping, const Array1<const int32_t>& query_start, const Array1<const int32_t>& seq_lens,
              const Array2<const int32_t>& block_table, int heads, float scale, int window, float softcap, bool store, int layers,
              int shares) {
    const size_t tokens = q.shape(0), seqs = seq_lens.shape(0), width = static_cast<size_t>(heads) * cache.head_dim();
    require(heads > 0 && heads % cache.kv_heads() == 0, "heads must be a multiple of kv_heads");
    require(q.shape(1) == width, "q must be [tokens, heads * head_dim]");
    require(query_start.shape(0) == seqs + 1 && block_table.shape(0) == seqs,
            "query_start, seq_lens and block_table disagree on the sequences");
    require(query_start(0) == 0 && static_cast<size_t>(query_start(seqs)) <= tokens, "query_start must begin at 0 and end within q");
    require(layers > 0 && layer >= 0 && layers <= cache.num_layers() - layer, "layers lie outside the cache");
    int64_t longest = 1;
    for (size_t seq = 0; seq < seqs; ++seq) {
        const int64_t count = int64_t{query_start(seq + 1)} - query_start(seq), length = seq_lens(seq);
        require(count >= 0 && count <= length, "a sequence must have at least its query tokens, and these must not be negative");
        longest = std::max(longest, length);
        const int64_t first = count > 0 && window > 0 ? std::max<int64_t>(0, length - count - window + 1) : 0;
        for (int64_t block = first / cache.block_size(); count > 0 && block * cache.block_size() < length; ++block) {
            require(static_cast<size_t>(block) < block_table.shape(1), "a block table is too short");
            require(block_table(seq, block) >= 0 && block_table(seq, block) < cache.num_blocks(), "a block id lies outside the cache");
        }
    }
    StoreArgs stored{};
    if (store) stored = store_args(cache, layer, k, v, slot_mapping);
    Out out = new_floats({tokens, width}, __builtin_nanf(""));
    Memory scratch(isa.attention_scratch(static_cast<int>(tokens), static_cast<int>(seqs), heads, cache.head_dim(), longest,
                                         std::max(pool.threads(), shares)));
    AttentionArgs args{q.data(),
                       static_cast<int64_t>(width),
                       out.data(),
                       static_cast<int64_t>(width),
                       query_start.data(),
                       seq_lens.data(),
                       block_table.data(),
                       static_cast<int64_t>(block_table.shape(1)),
                       static_cast<int>(seqs),
                       heads,
                       window,
                       scale,
                       softcap,
                       cache.layer(layer),
                       scratch.data()};
    nb::gil_scoped_release release;
    if (shares > 0) {
        if (store) isa.store(stored, {0, static_cast<int64_t>(tokens)});
        for (int i = 0; i < shares; ++i) isa.attention(args, i, shares);
        for (int i = 0; i < shares; ++i) isa.attention_merge(args, i, shares);
        return out;
    }
    if (store) pool.run([&](int i, int of) { isa.store(stored, share(static_cast<int64_t>(tokens), i, of)); });
    pool.run(2 * layers, [&](int op, int i, int of) {
        AttentionArgs own = args;
        own.cache = cache.layer(layer + op / 2);
        (op % 2 ? isa.attention_merge : isa.attention)(own, i, of);
    });
    return out;
}

// Bytes a second that all threads read together, from memory; multiply-adds a second of float32, from registers. One thread is timed by its
// own clock, so that other work on the machine does not count; several are timed by the wall.
std::tuple<double, double> measure_limits(const KernelTable& isa, ThreadPool& pool) {
    const clockid_t clock = pool.threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    auto now = [clock] {
        timespec time;
        clock_gettime(clock, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    constexpr int64_t kFloats = int64_t{24} << 20, kFmas = int64_t{12} << 18;
    Memory memory(kFloats * 4);
    nb::gil_scoped_release release;
    std::vector<double> read, multiply;
    for (int round = 0; round < 6; ++round) {
        auto seconds = [&](auto body) {
            const double start = now();
            pool.run([&](int i, int of) { body(reinterpret_cast<float*>(memory.data()) + kFloats / of * i, kFloats / of); });
            return now() - start;
        };
        if (round == 0) {
            seconds([](float* own, int64_t count) { std::fill_n(own, count, 1.0f); });
            continue;
        }
        read.push_back(seconds([&](float* own, int64_t count) {
            float out[16];
            isa.math(MathFunction::sum, own, count, out);
        }));
        multiply.push_back(seconds([&](float* own, int64_t) {
            float out[16];
            isa.math(MathFunction::multiply_add, own, kFmas, out);
        }));
    }
    std::nth_element(read.begin(), read.begin() + 2, read.end());
    std::nth_element(multiply.begin(), multiply.begin() + 2, multiply.end());
    return {4.0 * kFloats / read[2], static_cast<double>(kFmas) * isa.lanes * pool.threads() / multiply[2]};
}

}  // namespace

void bind_attention(nb::module_& m) {
    nb::class_<KVCache>(m, "KVCache", "Keys and values of the layers of one cache group; memory is touched when a block is.")
        .def(
            "__init__",
            [](KVCache* self, int num_layers, int64_t num_blocks, int block_size, int kv_heads, int head_dim, const std::string& type,
               const std::vector<int>& nodes) {
                new (self) KVCache(num_layers, num_blocks, block_size, kv_heads, head_dim, cache_type(type), nodes);
            },
            nb::arg("num_layers"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("kv_heads"), nb::arg("head_dim"),
            nb::arg("type") = "bf16", nb::arg("nodes") = std::vector<int>(),
            "On several nodes of the machine, its pages come from them in turn.")
        .def_prop_ro("num_layers", &KVCache::num_layers)
        .def_prop_ro("num_blocks", &KVCache::num_blocks)
        .def_prop_ro("block_size", &KVCache::block_size)
        .def_prop_ro("kv_heads", &KVCache::kv_heads)
        .def_prop_ro("head_dim", &KVCache::head_dim)
        .def_prop_ro("bytes", &KVCache::bytes)
        .def_prop_ro("type", [](const KVCache& self) { return name_of(self.type()); })
        .def_static(
            "bytes_per_block",
            [](int num_layers, int block_size, int kv_heads, int head_dim, const std::string& type) {
                return KVCache::bytes_per_block(num_layers, block_size, kv_heads, head_dim, cache_type(type));
            },
            nb::arg("num_layers"), nb::arg("block_size"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("type") = "bf16",
            "Bytes of a block over all layers, keys and values, padding included.")
        .def(
            "clear_blocks",
            [](const KVCache& self, const Array1<const int32_t>& ids) {
                check_blocks(self, ids);
                self.clear(ids.data(), static_cast<int>(ids.shape(0)), 0, 1);
            },
            nb::arg("ids"), "Zero-fills blocks in all layers.")
        .def(
            "copy_blocks",
            [](const KVCache& self, const Array1<const int32_t>& sources, const Array1<const int32_t>& destinations) {
                check_blocks(self, sources);
                check_blocks(self, destinations);
                require(sources.shape(0) == destinations.shape(0), "copy_blocks needs a destination for every source");
                require(sources.shape(0) <= KVCache::kMostCopies, "copy_blocks takes at most 65536 blocks at once");
                self.copy(sources.data(), destinations.data(), static_cast<int>(sources.shape(0)), 0, 1);
            },
            nb::arg("sources"), nb::arg("destinations"), "Copies blocks in all layers; all reads come before any write.")
        .def(
            "read_block",
            [](const KVCache& self, int layer, int64_t block) {
                require(layer >= 0 && layer < self.num_layers() && block >= 0 && block < self.num_blocks(),
                        "layer or block lies outside the cache");
                const std::vector<size_t> shape{static_cast<size_t>(self.block_size()), static_cast<size_t>(self.kv_heads()),
                                                static_cast<size_t>(self.head_dim())};
                Out keys = new_floats(shape, 0.0f), values = new_floats(shape, 0.0f);
                self.read_block(layer, block, keys.data(), values.data());
                return nb::make_tuple(keys, values);
            },
            nb::arg("layer"), nb::arg("block"), "Keys and values of a block, float32 [block_size, kv_heads, head_dim] each.");

    m.def("store", &store, nb::arg("isa"), nb::arg("pool"), nb::arg("cache"), nb::arg("layer"), nb::arg("k"), nb::arg("v"),
          nb::arg("slot_mapping"), "Writes k, v [tokens, kv_heads * head_dim] to their slots; -1 is left out.");
    m.def("attention", &attention, nb::arg("isa"), nb::arg("pool"), nb::arg("cache"), nb::arg("layer"), nb::arg("q"), nb::arg("k"),
          nb::arg("v"), nb::arg("slot_mapping"), nb::arg("query_start"), nb::arg("seq_lens"), nb::arg("block_table"), nb::arg("heads"),
          nb::arg("scale"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f, nb::arg("store") = true, nb::arg("layers") = 1,
          nb::arg("shares") = 0,
          "Stores k, v into `layer`, then attends from q [tokens, heads * head_dim] in `layers` layers from it, one after another;\n"
          "returns the last one's output, NaN where no sequence has a token. With `shares`, the caller does the work of so many threads\n"
          "in `layer` itself, one share after another.");
    m.def("measure_limits", &measure_limits, nb::arg("isa"), nb::arg("pool"),
          "What the pool's threads reach together here, medians, a single one by its CPU clock: bytes read from memory a second, float32 "
          "multiply-adds a second.");
    m.def(
        "math",
        [](const KernelTable& isa, const std::string& function, const Array1<const float>& x) {
            require(function == "exp" || function == "tanh", "the vector functions are exp and tanh");
            Out out = new_floats({x.shape(0)}, __builtin_nanf(""));
            isa.math(function == "exp" ? MathFunction::exp : MathFunction::tanh, x.data(), static_cast<int64_t>(x.shape(0)), out.data());
            return out;
        },
        nb::arg("isa"), nb::arg("function"), nb::arg("x"), "exp or tanh of every value, by the level's vector polynomial.");
}

}  // namespace octavo
