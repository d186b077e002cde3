#include <optional>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "program.h"

namespace octavo {

namespace {

// A view of a vector that lives as long as `owner`.
template <class T>
auto view(std::vector<T>& data, nb::handle owner) {
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data.data(), {data.size()}, owner);
}
template <class T>
auto view2(std::vector<T>& data, int64_t columns, nb::handle owner) {
    size_t width = static_cast<size_t>(columns);
    return nb::ndarray<nb::numpy, T, nb::ndim<2>>(data.data(), {width ? data.size() / width : 0, width}, owner);
}

// Adds one kernel: its arguments are final but for the row count, which each step sets. `keep` is what they point into.
template <class Args>
void record(Program& p, const char* name, const Args& final, int Args::* count, Rows rows,
            void (*KernelTable::*kernel)(const Args&, int, int), std::shared_ptr<void> keep = nullptr) {
    p.push(
        [&p, final, count, rows, kernel, keep](int thread, int threads) {
            Args args = final;
            args.*count = p.inputs->count(rows);
            (p.table->*kernel)(args, thread, threads);
        },
        name);
}

// Adds one kernel that treats rows one by one.
template <class Args>
void record_rows(Program& p, const char* name, const Args& args, Rows rows, void (*KernelTable::*kernel)(const Args&, Range),
                 std::shared_ptr<void> keep = nullptr) {
    p.push_rows([&p, args, kernel, keep](Range range) { (p.table->*kernel)(args, range); }, rows, name);
}

Rows rows_of(char kind) {
    switch (kind) {
        case 'T':
            return Rows::tokens;
        case 'S':
            return Rows::seqs;
        case 'R':
            return Rows::outputs;
        default:
            throw std::invalid_argument(std::string("Rows are T, S or R, not ") + kind);
    }
}

// Room for `width` float32 values in each row that a step may have.
float* floats(const Program& p, Rows rows, int64_t offset, int64_t width) {
    require(width > 0, "rows must have at least one column");
    return p.at<float>(offset, p.inputs->capacity(rows), 4 * width);
}

Activation activation_from(int number) {
    require(number >= 0 && number <= static_cast<int>(Activation::relu), "there is no activation of this number");
    return static_cast<Activation>(number);
}

StepInputs::Group& group_of(Program& p, int group) {
    require(group >= 0 && static_cast<size_t>(group) < p.inputs->groups.size(), "the inputs have no such cache group");
    return p.inputs->groups[static_cast<size_t>(group)];
}

void check_weight(const Program& p, const PackedWeightOwner& weight) {
    require(weight.table == p.table, "the weight was packed for another instruction set");
}

using Bias = std::optional<Array1<const float>>;

const float* bias_of(const PackedWeight& weight, const Bias& bias) {
    require(!bias || bias->shape(0) == static_cast<size_t>(weight.n), "a bias must have a value for each row of its weight");
    return bias ? bias->data() : nullptr;
}

void record_linear(Program& p, char kind, const std::vector<int64_t>& xs, const std::vector<std::shared_ptr<PackedWeightOwner>>& weights,
                   const std::vector<Bias>& biases, const std::vector<int64_t>& outs, const std::vector<bool>& accumulate) {
    constexpr size_t kMost = 8;
    const size_t count = weights.size();
    require(count >= 1 && count <= kMost, "a linear op takes 1 to 8 weights");
    require(xs.size() == count && biases.size() == count && outs.size() == count && accumulate.size() == count,
            "a linear op needs an input, a bias or None, an output and a flag for each weight");
    const Rows rows = rows_of(kind);
    const int64_t most = p.inputs->capacity(rows);
    std::vector<LinearArgs> list;
    for (size_t i = 0; i < count; ++i) {
        check_weight(p, *weights[i]);
        const PackedWeight& w = weights[i]->packed;
        const std::byte* x = p.at<std::byte>(xs[i], most, p.table->act_bytes(p.table->act_of(w.format), w.k));
        list.push_back({&w, x, 0, bias_of(w, biases[i]), floats(p, rows, outs[i], w.n), w.n, accumulate[i]});
    }
    // Every thread of a step writes the same row count: the list is refreshed by each into its own copy on the stack.
    p.push(
        [&p, list, weights, biases, rows](int thread, int threads) {
            LinearArgs args[kMost];
            for (size_t i = 0; i < list.size(); ++i) {
                args[i] = list[i];
                args[i].rows = p.inputs->count(rows);
            }
            p.table->linear(args, static_cast<int>(list.size()), thread, threads);
        },
        "linear");
}

void record_attention(Program& p, int group, std::shared_ptr<KVCache> cache, int layer, int64_t q, int64_t k, int64_t v, int heads,
                      int window, float scale, float softcap, int64_t max_seq_len, int64_t scratch, int64_t out) {
    auto& inputs = group_of(p, group);
    require(layer >= 0 && layer < cache->num_layers(), "layer lies outside the cache");
    require(heads > 0 && heads % cache->kv_heads() == 0, "heads must be a multiple of kv_heads");
    require(window >= 0 && max_seq_len > 0, "window must not be negative, and max_seq_len must be positive");
    const CacheLayer stored = cache->layer(layer);
    const GroupLimits limits{stored.num_blocks, stored.block_size, window, max_seq_len};
    auto& known = p.limits[static_cast<size_t>(group)];
    require(!known || *known == limits, "the layers of a cache group share a window, a longest sequence, and caches of one shape");
    const int64_t kv_width = int64_t{stored.kv_heads} * stored.head_dim, width = int64_t{heads} * stored.head_dim;
    const int64_t scratch_bytes =
        p.table->attention_scratch(p.inputs->max_tokens, p.inputs->max_seqs, heads, stored.head_dim, max_seq_len, p.pool->threads());
    StoreArgs s{floats(p, Rows::tokens, k, kv_width), floats(p, Rows::tokens, v, kv_width), kv_width, inputs.slot_mapping.data(), stored};
    AttentionArgs a{floats(p, Rows::tokens, q, width),
                    width,
                    floats(p, Rows::tokens, out, width),
                    width,
                    p.inputs->query_start.data(),
                    p.inputs->seq_lens.data(),
                    inputs.block_table.data(),
                    inputs.max_blocks,
                    0,
                    heads,
                    window,
                    scale,
                    softcap,
                    stored,
                    p.at<std::byte>(scratch, 1, scratch_bytes)};
    if (!known) {
        known = limits;
        p.prepare([&p, group, limits] { p.inputs->check_group(static_cast<size_t>(group), limits); });
    }
    record_rows(p, "store", s, Rows::tokens, &KernelTable::store, cache);
    record(p, "attention", a, &AttentionArgs::seqs, Rows::seqs, &KernelTable::attention);
    record(p, "attention_merge", a, &AttentionArgs::seqs, Rows::seqs, &KernelTable::attention_merge);
}

void record_sample(Program& p, int64_t logits, int columns, std::shared_ptr<SampleInputs> sampling) {
    require(columns >= sampling->vocab, "the logits have fewer columns than the sampler has tokens");
    require(p.pool->threads() <= sampling->threads, "the sampler has scratch for fewer threads than the pool has");
    const float* rows = floats(p, Rows::outputs, logits, columns);
    auto args = std::make_shared<SampleArgs>();
    p.prepare([&p, args, sampling, rows, columns] { *args = sampling->args(rows, columns, p.inputs->rows); });
    p.push([&p, args, sampling](int thread, int threads) { p.table->sample(*args, thread, threads); }, "sample");
}

using CallArgument = std::tuple<char, int64_t, int64_t>;  // rows, offset, columns

void record_call(Program& p, nb::callable function, const std::vector<CallArgument>& arguments, int64_t out) {
    require(!arguments.empty(), "a called function needs an array");
    for (auto [rows, offset, columns] : arguments) floats(p, rows_of(rows), offset, columns);
    // The result replaces the rows of `out`, which is shaped like the first argument.
    const Rows kind = rows_of(std::get<0>(arguments[0]));
    const size_t width = static_cast<size_t>(std::get<2>(arguments[0]));
    float* target = floats(p, kind, out, std::get<2>(arguments[0]));
    p.push_host(
        [&p, function, arguments, kind, width, target] {
            nb::gil_scoped_acquire gil;
            nb::list arrays;
            for (auto [rows, offset, columns] : arguments)
                arrays.append(nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(
                    floats(p, rows_of(rows), offset, columns),
                    {static_cast<size_t>(p.inputs->count(rows_of(rows))), static_cast<size_t>(columns)}, nb::cast(&p))));
            auto result = nb::cast<Array2<const float>>(function(*nb::tuple(arrays)));
            const size_t count = static_cast<size_t>(p.inputs->count(kind));
            if (result.shape(0) != count || result.shape(1) != width)
                throw nb::value_error("A called function must return a float32 array shaped like its first argument.");
            std::memcpy(target, result.data(), count * width * sizeof(float));
        },
        "call");
}

// Gate, then up.
void record_gated_linear(Program& p, char kind, int activation, const std::vector<int64_t>& xs,
                         const std::vector<std::shared_ptr<PackedWeightOwner>>& weights, const std::vector<Bias>& biases, int number,
                         int64_t out) {
    require(xs.size() == 2 && weights.size() == 2 && biases.size() == 2, "a gated linear has two weights, a form of x and a bias for each");
    const Rows rows = rows_of(kind);
    const int64_t capacity = p.inputs->capacity(rows);
    const std::byte* x[2];
    const float* bias[2];
    for (size_t i = 0; i < 2; ++i) {
        const PackedWeight& w = weights[i]->packed;
        check_weight(p, *weights[i]);
        require(w.n == weights[0]->packed.n, "gate and up must have as many columns");
        x[i] = p.at<std::byte>(xs[i], capacity, p.table->act_bytes(p.table->act_of(w.format), w.k));
        bias[i] = bias_of(w, biases[i]);
    }
    const Act form = act_from(number);
    GatedArgs a{activation_from(activation),
                &weights[0]->packed,
                &weights[1]->packed,
                x[0],
                x[1],
                bias[0],
                bias[1],
                0,
                form,
                p.at<std::byte>(out, capacity, p.table->act_bytes(form, weights[0]->packed.n))};
    record(p, "gated_linear", a, &GatedArgs::rows, rows, &KernelTable::gated_linear,
           std::make_shared<std::pair<std::vector<std::shared_ptr<PackedWeightOwner>>, std::vector<Bias>>>(weights, biases));
}

}  // namespace

void bind_program(nb::module_& m) {
    using Group = StepInputs::Group;
    nb::class_<Group>(m, "GroupInputs")
        .def_prop_ro("slot_mapping", [](nb::handle_t<Group> self) { return view(nb::cast<Group&>(self).slot_mapping, self); })
        .def_prop_ro("block_table",
                     [](nb::handle_t<Group> self) {
                         auto& g = nb::cast<Group&>(self);
                         return view2(g.block_table, g.max_blocks, self);
                     })
        .def(
            "set_opened", [](Group& group, const std::vector<int32_t>& blocks) { group.opened = blocks; }, nb::arg("blocks"),
            "Blocks that the step clears first.")
        .def_prop_ro("copy_source", [](nb::handle_t<Group> self) { return view(nb::cast<Group&>(self).copy_source, self); })
        .def_prop_ro("copy_target", [](nb::handle_t<Group> self) { return view(nb::cast<Group&>(self).copy_target, self); })
        .def_rw("num_copies", &Group::num_copies)
        .def("set_blocks", &Group::set_blocks, nb::arg("row"), nb::arg("first"), nb::arg("blocks"),
             "A row of block_table ends with these blocks, from its `first` on.");

    nb::class_<StepInputs>(m, "StepInputs")
        .def(nb::init<int, int, int, const std::vector<int64_t>&>(), nb::arg("max_tokens"), nb::arg("max_seqs"), nb::arg("max_rows"),
             nb::arg("max_blocks"))
        .def_static("bytes", &StepInputs::bytes, nb::arg("max_tokens"), nb::arg("max_seqs"), nb::arg("max_rows"), nb::arg("max_blocks"),
                    "What such arrays take; opened blocks come on top, up to a number for each of the pool.")
        .def_ro("max_tokens", &StepInputs::max_tokens)
        .def_ro("max_seqs", &StepInputs::max_seqs)
        .def_ro("max_rows", &StepInputs::max_rows)
        .def_rw("tokens", &StepInputs::tokens)
        .def_rw("seqs", &StepInputs::seqs)
        .def_rw("rows", &StepInputs::rows)
        .def("write_decodes", &StepInputs::write_decodes, nb::arg("token_ids"), nb::arg("positions"), nb::arg("block_size"),
             "Makes the first rows sequences of one token each; returns those whose block table does not reach the position yet.")
        .def("move_rows", &StepInputs::move_rows, nb::arg("moves"), "Copies rows of the block tables, (from, to) by (from, to).")
        .def_prop_ro("token_ids", [](nb::handle_t<StepInputs> self) { return view(nb::cast<StepInputs&>(self).token_ids, self); })
        .def_prop_ro("positions", [](nb::handle_t<StepInputs> self) { return view(nb::cast<StepInputs&>(self).positions, self); })
        .def_prop_ro("query_start", [](nb::handle_t<StepInputs> self) { return view(nb::cast<StepInputs&>(self).query_start, self); })
        .def_prop_ro("seq_lens", [](nb::handle_t<StepInputs> self) { return view(nb::cast<StepInputs&>(self).seq_lens, self); })
        .def_prop_ro("output_rows", [](nb::handle_t<StepInputs> self) { return view(nb::cast<StepInputs&>(self).output_rows, self); })
        .def_prop_ro("groups", [](nb::handle_t<StepInputs> self) {
            nb::list list;
            for (auto& group : nb::cast<StepInputs&>(self).groups) list.append(nb::cast(&group, nb::rv_policy::reference_internal, self));
            return list;
        });

    // Recording methods take byte offsets into the workspace; `rows` is 'T', 'S' or 'R'. Ops keep pointers: what is given as an array or a
    // list of arrays is kept alive by the Program.
    nb::class_<Program>(m, "Program")
        .def(nb::init<const KernelTable*, std::shared_ptr<ThreadPool>, std::shared_ptr<StepInputs>, int64_t>(), nb::arg("isa"),
             nb::arg("pool"), nb::arg("inputs"), nb::arg("workspace_bytes"))
        .def(nb::init<const Program&, std::shared_ptr<StepInputs>>(), nb::arg("beside"), nb::arg("inputs"),
             "In the workspace of another one; one of them runs at a time.")
        .def("run", &Program::run, nb::arg("first") = 0, nb::arg("last") = -1, nb::call_guard<nb::gil_scoped_release>())
        .def("run_share", &Program::run_share, nb::arg("op"), nb::arg("number"),
             "A share of one op that has one for each thread, by itself: for tests of what it reads and writes.")
        .def("cut", &Program::cut)
        .def_prop_ro("segments", &Program::segments)
        .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
        .def_prop_ro("op_names", &Program::op_names)
        .def_prop_ro("inputs", [](const Program& p) { return p.inputs; })
        .def_ro("runs", &Program::runs)
        .def_rw("profile", &Program::profile)
        .def_rw("seconds", &Program::seconds)
        .def(
            "floats",
            [](nb::handle_t<Program> self, int64_t offset, int64_t rows, int64_t columns) {
                require(columns >= 0 && columns <= INT32_MAX, "columns must not be negative");
                return nb::ndarray<nb::numpy, float, nb::ndim<2>>(nb::cast<Program&>(self).at<float>(offset, rows, 4 * columns),
                                                                  {static_cast<size_t>(rows), static_cast<size_t>(columns)}, self);
            },
            nb::arg("offset"), nb::arg("rows"), nb::arg("columns"), "A view of a float32 buffer in the workspace.")
        .def(
            "update_cache",
            [](Program& p, int group, std::shared_ptr<KVCache> cache) {
                auto& g = group_of(p, group);
                p.prepare([&p, group, blocks = cache->num_blocks()] { p.inputs->check_updates(static_cast<size_t>(group), blocks); });
                p.push([&g, cache](int thread,
                                   int threads) { cache->copy(g.copy_source.data(), g.copy_target.data(), g.num_copies, thread, threads); },
                       "copy_blocks");
                p.push([&g, cache](int thread,
                                   int threads) { cache->clear(g.opened.data(), static_cast<int>(g.opened.size()), thread, threads); },
                       "clear_blocks");
            },
            nb::arg("group"), nb::arg("cache"))
        .def("embed",
             [](Program& p, std::shared_ptr<PackedWeightOwner> weight, float scale, int64_t out) {
                 check_weight(p, *weight);
                 const PackedWeight& w = weight->packed;
                 EmbedArgs a{&w, p.inputs->token_ids.data(), scale, floats(p, Rows::tokens, out, w.k), w.k};
                 p.prepare([&p, vocab = w.n] { p.inputs->check_token_ids(vocab); });
                 record_rows(p, "embed", a, Rows::tokens, &KernelTable::embed, weight);
             })
        .def("quantize",
             [](Program& p, char kind, int number, int64_t x, int k, int64_t out) {
                 const Act act = act_from(number);
                 const Rows rows = rows_of(kind);
                 QuantizeArgs a{act, floats(p, rows, x, k), k, k,
                                p.at<std::byte>(out, p.inputs->capacity(rows), p.table->act_bytes(act, k))};
                 record_rows(p, "quantize", a, rows, &KernelTable::quantize);
             })
        .def("linear", &record_linear, "At most 8 weights, run as one op.")
        .def("gated_linear", &record_gated_linear)
        .def(
            "rms_norm",
            [](Program& p, char kind, int64_t x, Array1<const float> weight, float epsilon, float offset, int groups, int64_t out) {
                const Rows rows = rows_of(kind);
                const int64_t width = static_cast<int64_t>(weight.shape(0)) * groups;
                require(groups > 0 && width <= INT32_MAX, "a norm needs groups of fewer than 2147483648 values together");
                const int size = static_cast<int>(weight.shape(0));
                NormArgs a{floats(p, rows, x, width),   width, weight.data(), epsilon, offset, groups, size,
                           floats(p, rows, out, width), width};
                record_rows(p, "rms_norm", a, rows, &KernelTable::rms_norm);
            },
            nb::keep_alive<1, 4>(), nb::arg("rows"), nb::arg("x"), nb::arg("weight").noconvert(), nb::arg("epsilon"), nb::arg("offset"),
            nb::arg("groups"), nb::arg("out"))
        .def(
            "rope_angles",
            [](Program& p, Array1<const double> inv_freq, double scale, int64_t out) {
                const int half = static_cast<int>(inv_freq.shape(0));
                RopeAnglesArgs a{p.inputs->positions.data(), inv_freq.data(), scale, half, floats(p, Rows::tokens, out, 2 * int64_t{half})};
                record_rows(p, "rope_angles", a, Rows::tokens, &KernelTable::rope_angles);
            },
            nb::keep_alive<1, 2>(), nb::arg("inv_freq").noconvert(), nb::arg("scale"), nb::arg("out"))
        .def("rope",
             [](Program& p, int64_t angles, int64_t x, int heads, int head_dim, int half, bool interleaved) {
                 require(heads > 0 && half > 0 && half <= head_dim / 2, "rope rotates pairs of values of each head");
                 const int64_t width = int64_t{heads} * head_dim;
                 RopeArgs a{floats(p, Rows::tokens, angles, 2 * int64_t{half}),
                            floats(p, Rows::tokens, x, width),
                            width,
                            heads,
                            head_dim,
                            half,
                            interleaved};
                 record_rows(p, "rope", a, Rows::tokens, &KernelTable::rope);
             })
        .def("activation",
             [](Program& p, char kind, int number, int64_t gate, int64_t up, int size, int64_t out) {
                 const Rows rows = rows_of(kind);
                 ActivationArgs a{activation_from(number),
                                  floats(p, rows, gate, size),
                                  up < 0 ? nullptr : floats(p, rows, up, size),
                                  size,
                                  size,
                                  size,
                                  floats(p, rows, out, size),
                                  size};
                 record_rows(p, "activation", a, rows, &KernelTable::activation);
             })
        .def("add",
             [](Program& p, char kind, int64_t x, int64_t y, float factor, int size, int64_t out) {
                 const Rows rows = rows_of(kind);
                 AddArgs a{floats(p, rows, x, size),  y < 0 ? nullptr : floats(p, rows, y, size), factor, size, size,
                           floats(p, rows, out, size)};
                 record_rows(p, "add", a, rows, &KernelTable::add);
             })
        .def("select_rows",
             [](Program& p, int64_t x, int size, int64_t out) {
                 SelectArgs a{floats(p, Rows::tokens, x, size), size, p.inputs->output_rows.data(), size,
                              floats(p, Rows::outputs, out, size)};
                 p.prepare([&p] { p.inputs->check_output_rows(); });
                 record_rows(p, "select_rows", a, Rows::outputs, &KernelTable::select);
             })
        .def("softcap",
             [](Program& p, char kind, int64_t x, int size, float cap, float scale) {
                 const Rows rows = rows_of(kind);
                 SoftcapArgs a{floats(p, rows, x, size), size, 0, size, cap, scale};
                 record(p, "softcap", a, &SoftcapArgs::rows, rows, &KernelTable::softcap);
             })
        .def("attention", &record_attention)
        .def("sample", &record_sample)
        .def("call", &record_call);
    m.def("act_of", [](const KernelTable* isa, int format) {
        require(format >= 0 && format <= static_cast<int>(Format::i8s), "there is no format of this number");
        return static_cast<int>(isa->act_of(static_cast<Format>(format)));
    });
    m.def("act_bytes", [](const KernelTable* isa, int act, int k) {
        require(k > 0, "rows must have at least one column");
        return isa->act_bytes(act_from(act), k);
    });
    m.def("attention_scratch",
          [](const KernelTable* isa, int max_tokens, int max_seqs, int heads, int head_dim, int64_t max_seq_len, int threads) {
              require(heads > 0 && head_dim > 0 && head_dim <= 256 && max_seq_len > 0 && max_seq_len <= INT32_MAX && threads > 0,
                      "attention needs heads of up to 256 values, a length and threads");
              return isa->attention_scratch(max_tokens, max_seqs, heads, head_dim, max_seq_len, threads);
          });
}

}  // namespace octavo
