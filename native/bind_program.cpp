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
        .def_rw("num_copies", &Group::num_copies);

    nb::class_<StepInputs>(m, "StepInputs")
        .def(nb::init<int, int, int, const std::vector<int64_t>&>(), nb::arg("max_tokens"), nb::arg("max_seqs"), nb::arg("max_rows"),
             nb::arg("max_blocks"))
        .def_ro("max_tokens", &StepInputs::max_tokens)
        .def_ro("max_seqs", &StepInputs::max_seqs)
        .def_ro("max_rows", &StepInputs::max_rows)
        .def_rw("tokens", &StepInputs::tokens)
        .def_rw("seqs", &StepInputs::seqs)
        .def_rw("rows", &StepInputs::rows)
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
        .def("run", &Program::run, nb::arg("first") = 0, nb::arg("last") = -1, nb::call_guard<nb::gil_scoped_release>())
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
                return nb::ndarray<nb::numpy, float, nb::ndim<2>>(nb::cast<Program&>(self).at<float>(offset),
                                                                  {static_cast<size_t>(rows), static_cast<size_t>(columns)}, self);
            },
            nb::arg("offset"), nb::arg("rows"), nb::arg("columns"), "A view of a float32 buffer in the workspace.")
        .def(
            "update_cache",
            [](Program& p, int group, std::shared_ptr<KVCache> cache) {
                p.push(
                    [&p, group, cache](int thread, int threads) {
                        auto& g = p.inputs->groups[static_cast<size_t>(group)];
                        cache->copy(g.copy_source.data(), g.copy_target.data(), g.num_copies, thread, threads);
                    },
                    "copy_blocks");
                p.push(
                    [&p, group, cache](int thread, int threads) {
                        auto& g = p.inputs->groups[static_cast<size_t>(group)];
                        cache->clear(g.opened.data(), static_cast<int>(g.opened.size()), thread, threads);
                    },
                    "clear_blocks");
            },
            nb::arg("group"), nb::arg("cache"))
        .def("embed",
             [](Program& p, std::shared_ptr<PackedWeightOwner> weight, float scale, int64_t out) {
                 EmbedArgs a{&weight->packed, p.inputs->token_ids.data(), 0, scale, p.at<float>(out), weight->packed.k};
                 record(p, "embed", a, &EmbedArgs::rows, Rows::tokens, &KernelTable::embed, weight);
             })
        .def("quantize",
             [](Program& p, char rows, int act, int64_t x, int k, int64_t out) {
                 QuantizeArgs a{static_cast<Act>(act), p.at<float>(x), k, 0, k, p.at<std::byte>(out)};
                 record(p, "quantize", a, &QuantizeArgs::rows, rows_of(rows), &KernelTable::quantize);
             })
        .def(
            "linear",
            [](Program& p, char rows, const std::vector<int64_t>& xs, const std::vector<std::shared_ptr<PackedWeightOwner>>& weights,
               nb::list biases, const std::vector<int64_t>& outs, const std::vector<bool>& accumulate) {
                std::vector<LinearArgs> list;
                for (size_t i = 0; i < weights.size(); ++i) {
                    const float* bias = nullptr;
                    if (!biases[i].is_none()) bias = nb::cast<Array1<const float>>(biases[i], false).data();
                    list.push_back(
                        {&weights[i]->packed, p.at<std::byte>(xs[i]), 0, bias, p.at<float>(outs[i]), weights[i]->packed.n, accumulate[i]});
                }
                // Every thread of a step writes the same row count: the list is refreshed by each into its own copy on the stack.
                p.push(
                    [&p, list, weights, kind = rows_of(rows)](int thread, int threads) {
                        LinearArgs args[8];
                        for (size_t i = 0; i < list.size(); ++i) {
                            args[i] = list[i];
                            args[i].rows = p.inputs->count(kind);
                        }
                        p.table->linear(args, static_cast<int>(list.size()), thread, threads);
                    },
                    "linear");
            },
            nb::keep_alive<1, 5>(), "At most 8 weights, run as one op.")
        .def(
            "gated_linear",
            [](Program& p, char rows, int kind, const std::vector<int64_t>& xs,
               const std::vector<std::shared_ptr<PackedWeightOwner>>& weights, nb::list biases, int form, int64_t out) {
                if (xs.size() != 2 || weights.size() != 2 || nb::len(biases) != 2 || weights[0]->packed.n != weights[1]->packed.n)
                    throw std::invalid_argument("gated_linear takes two weights of equal rows, a form of x and a bias (or None) for each.");
                const float* bias[2] = {};
                for (size_t i = 0; i < 2; ++i)
                    if (!biases[i].is_none()) bias[i] = nb::cast<Array1<const float>>(biases[i], false).data();
                GatedArgs a{static_cast<Activation>(kind),
                            &weights[0]->packed,
                            &weights[1]->packed,
                            p.at<std::byte>(xs[0]),
                            p.at<std::byte>(xs[1]),
                            bias[0],
                            bias[1],
                            0,
                            static_cast<Act>(form),
                            p.at<std::byte>(out)};
                auto keep = std::make_shared<std::vector<std::shared_ptr<PackedWeightOwner>>>(weights);
                record(p, "gated_linear", a, &GatedArgs::rows, rows_of(rows), &KernelTable::gated_linear, keep);
            },
            nb::keep_alive<1, 6>())
        .def(
            "rms_norm",
            [](Program& p, char rows, int64_t x, Array1<const float> weight, float epsilon, float offset, int groups, int64_t out) {
                int size = static_cast<int>(weight.shape(0));
                NormArgs a{p.at<float>(x), int64_t{groups} * size, weight.data(),         epsilon, offset, 0, groups,
                           size,           p.at<float>(out),       int64_t{groups} * size};
                record(p, "rms_norm", a, &NormArgs::rows, rows_of(rows), &KernelTable::rms_norm);
            },
            nb::keep_alive<1, 4>(), nb::arg("rows"), nb::arg("x"), nb::arg("weight").noconvert(), nb::arg("epsilon"), nb::arg("offset"),
            nb::arg("groups"), nb::arg("out"))
        .def(
            "rope_angles",
            [](Program& p, Array1<const double> inv_freq, double scale, int64_t out) {
                RopeAnglesArgs a{p.inputs->positions.data(),          inv_freq.data(), scale, 0,
                                 static_cast<int>(inv_freq.shape(0)), p.at<float>(out)};
                record(p, "rope_angles", a, &RopeAnglesArgs::rows, Rows::tokens, &KernelTable::rope_angles);
            },
            nb::keep_alive<1, 2>(), nb::arg("inv_freq").noconvert(), nb::arg("scale"), nb::arg("out"))
        .def("rope",
             [](Program& p, int64_t angles, int64_t x, int heads, int head_dim, int half, bool interleaved) {
                 RopeArgs a{p.at<float>(angles), p.at<float>(x), int64_t{heads} * head_dim, 0, heads, head_dim, half, interleaved};
                 record(p, "rope", a, &RopeArgs::rows, Rows::tokens, &KernelTable::rope);
             })
        .def("activation",
             [](Program& p, char rows, int kind, int64_t gate, int64_t up, int size, int64_t out) {
                 ActivationArgs a{static_cast<Activation>(kind),
                                  p.at<float>(gate),
                                  up < 0 ? nullptr : p.at<float>(up),
                                  size,
                                  size,
                                  0,
                                  size,
                                  p.at<float>(out),
                                  size};
                 record(p, "activation", a, &ActivationArgs::rows, rows_of(rows), &KernelTable::activation);
             })
        .def("add",
             [](Program& p, char rows, int64_t x, int64_t y, float factor, int size, int64_t out) {
                 AddArgs a{p.at<float>(x), y < 0 ? nullptr : p.at<float>(y), factor, size, 0, size, p.at<float>(out)};
                 record(p, "add", a, &AddArgs::rows, rows_of(rows), &KernelTable::add);
             })
        .def("select_rows",
             [](Program& p, int64_t x, int size, int64_t out) {
                 SelectArgs a{p.at<float>(x), size, p.inputs->output_rows.data(), 0, size, p.at<float>(out)};
                 record(p, "select_rows", a, &SelectArgs::rows, Rows::outputs, &KernelTable::select);
             })
        .def("softcap",
             [](Program& p, char rows, int64_t x, int size, float cap, float scale) {
                 SoftcapArgs a{p.at<float>(x), size, 0, size, cap, scale};
                 record(p, "softcap", a, &SoftcapArgs::rows, rows_of(rows), &KernelTable::softcap);
             })
        .def("pool",
             [](Program& p, int64_t x, int size, bool mean, int64_t out) {
                 PoolArgs a{p.at<float>(x), size, p.inputs->query_start.data(), 0, size, mean, p.at<float>(out)};
                 record(p, "pool", a, &PoolArgs::seqs, Rows::seqs, &KernelTable::pool);
             })
        .def("attention",
             [](Program& p, int group, std::shared_ptr<KVCache> cache, int layer, int64_t q, int64_t k, int64_t v, int heads, int window,
                float scale, float softcap, int64_t scratch, int64_t out) {
                 const CacheLayer stored = cache->layer(layer);
                 int64_t kv_width = int64_t{stored.kv_heads} * stored.head_dim, width = int64_t{heads} * stored.head_dim;
                 auto& inputs = p.inputs->groups[static_cast<size_t>(group)];
                 StoreArgs s{p.at<float>(k), p.at<float>(v), kv_width, inputs.slot_mapping.data(), 0, stored};
                 AttentionArgs a{p.at<float>(q),
                                 width,
                                 p.at<float>(out),
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
                                 p.at<std::byte>(scratch)};
                 record(p, "store", s, &StoreArgs::rows, Rows::tokens, &KernelTable::store, cache);
                 record(p, "attention", a, &AttentionArgs::seqs, Rows::seqs, &KernelTable::attention);
                 record(p, "attention_merge", a, &AttentionArgs::seqs, Rows::seqs, &KernelTable::attention_merge);
             })
        .def("sample",
             [](Program& p, int64_t logits, int columns, std::shared_ptr<SampleInputs> sampling) {
                 auto args = std::make_shared<SampleArgs>();
                 p.prepare([&p, args, sampling, logits, columns] { *args = sampling->args(p.at<float>(logits), columns, p.inputs->rows); });
                 p.push([&p, args, sampling](int thread, int threads) { p.table->sample(*args, thread, threads); }, "sample");
             })
        .def("call", [](Program& p, nb::callable function, const std::vector<std::tuple<char, int64_t, int64_t>>& arguments, int64_t out) {
            // The result replaces the rows of `out`, which is shaped like the first argument.
            p.push_host(
                [&p, function, arguments, out] {
                    nb::gil_scoped_acquire gil;
                    nb::list arrays;
                    for (auto [rows, offset, columns] : arguments)
                        arrays.append(nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(
                            p.at<float>(offset), {static_cast<size_t>(p.inputs->count(rows_of(rows))), static_cast<size_t>(columns)},
                            nb::cast(&p))));
                    auto [rows, offset, columns] = arguments[0];
                    auto result = nb::cast<Array2<const float>>(function(*nb::tuple(arrays)));
                    size_t count = static_cast<size_t>(p.inputs->count(rows_of(rows)));
                    if (result.shape(0) != count || result.shape(1) != static_cast<size_t>(columns))
                        throw nb::value_error("A called function must return a float32 array shaped like its first argument.");
                    std::memcpy(p.at<float>(out), result.data(), count * static_cast<size_t>(columns) * sizeof(float));
                },
                "call");
        });
    m.def("act_of", [](const KernelTable* isa, int format) { return static_cast<int>(isa->act_of(static_cast<Format>(format))); });
    m.def("act_bytes", [](const KernelTable* isa, int act, int k) { return isa->act_bytes(static_cast<Act>(act), k); });
    m.def("attention_scratch",
          [](const KernelTable* isa, int max_tokens, int max_seqs, int heads, int head_dim, int64_t max_seq_len, int threads) {
              return isa->attention_scratch(max_tokens, max_seqs, heads, head_dim, max_seq_len, threads);
          });
}

}  // namespace octavo
