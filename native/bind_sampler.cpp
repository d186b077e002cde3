// SampleInputs, TokenCounts and sample(): the sampler alone, as tests and benchmarks call it.
#include <optional>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind.h"

#include "sample_inputs.h"

namespace octavo {

template <class T>
static std::span<const T> span_of(const Array1<const T>& array) {
    return {array.data(), array.size()};
}

// A view of one of the inputs' arrays; it keeps them alive.
template <auto member>
static auto view(nb::handle self) {
    auto& vector = nb::cast<SampleInputs&>(self).*member;
    using T = typename std::remove_reference_t<decltype(vector)>::value_type;
    return Array1<T>(vector.data(), {vector.size()}, self);
}

template <auto member>
static auto top_view(nb::handle self) {
    auto& inputs = nb::cast<SampleInputs&>(self);
    auto& vector = inputs.*member;
    using T = typename std::remove_reference_t<decltype(vector)>::value_type;
    return Array2<T>(vector.data(), {static_cast<size_t>(inputs.max_rows), static_cast<size_t>(inputs.max_logprobs)}, self);
}

static Array2<uint32_t> mask_view(nb::handle self) {
    auto& inputs = nb::cast<SampleInputs&>(self);
    return {reinterpret_cast<uint32_t*>(inputs.mask.data()),
            {static_cast<size_t>(inputs.max_rows), static_cast<size_t>(inputs.mask_words)},
            self};
}

static void sample_rows(const KernelTable& isa, ThreadPool& pool, Array2<const float> logits, SampleInputs& inputs) {
    if (logits.shape(1) != static_cast<size_t>(inputs.vocab))
        throw std::invalid_argument("The logits have " + std::to_string(logits.shape(1)) + " columns, the sampler has " +
                                    std::to_string(inputs.vocab) + " tokens.");
    if (pool.threads() > inputs.threads)
        throw std::invalid_argument("The sampler has scratch for " + std::to_string(inputs.threads) + " threads, the pool has " +
                                    std::to_string(pool.threads()) + ".");
    SampleArgs args = inputs.args(logits.data(), inputs.vocab, static_cast<int64_t>(logits.shape(0)));
    nb::gil_scoped_release released;
    pool.run([&](int thread, int threads) { isa.sample(args, thread, threads); });
}

static std::optional<std::vector<int32_t>> sampled(const SampleInputs& inputs) {
    for (int row = 0; row < inputs.rows; ++row)
        if (inputs.status[static_cast<size_t>(row)]) return std::nullopt;
    return std::vector<int32_t>(inputs.token_ids.begin(), inputs.token_ids.begin() + inputs.rows);
}

void bind_sampler(nb::module_& m) {
    nb::class_<TokenCounts>(m, "TokenCounts", "The distinct tokens of a sequence and how often each is in its output.")
        .def(
            "__init__", [](TokenCounts* self, Array1<const int32_t> prompt) { new (self) TokenCounts(span_of(prompt)); }, nb::arg("prompt"))
        .def("add", &TokenCounts::add, nb::arg("token_id"), "Counts one more output token.")
        .def("__len__", [](const TokenCounts& self) { return self.ids.size(); });

    nb::class_<SampleInputs>(m, "SampleInputs", "The sampler's rows: arrays to patch in place, lists to set, outputs to read.")
        .def(nb::init<int, int, int, int>(), nb::arg("max_rows"), nb::arg("vocab"), nb::arg("max_logprobs"), nb::arg("threads"))
        .def_ro("max_rows", &SampleInputs::max_rows)
        .def_ro("vocab", &SampleInputs::vocab)
        .def_ro("max_logprobs", &SampleInputs::max_logprobs)
        .def_ro("threads", &SampleInputs::threads)
        .def_rw("rows", &SampleInputs::rows)
        .def_prop_ro("bytes", &SampleInputs::bytes, "Memory held, the scratch of every thread included.")
        .def_prop_ro("source", &view<&SampleInputs::source>)
        .def_prop_ro("temperature", &view<&SampleInputs::temperature>)
        .def_prop_ro("top_k", &view<&SampleInputs::top_k>)
        .def_prop_ro("top_p", &view<&SampleInputs::top_p>)
        .def_prop_ro("min_p", &view<&SampleInputs::min_p>)
        .def_prop_ro("repetition_penalty", &view<&SampleInputs::repetition_penalty>)
        .def_prop_ro("presence_penalty", &view<&SampleInputs::presence_penalty>)
        .def_prop_ro("frequency_penalty", &view<&SampleInputs::frequency_penalty>)
        .def_prop_ro("seed", &view<&SampleInputs::seed>)
        .def_prop_ro("sequence", &view<&SampleInputs::sequence>)
        .def_prop_ro("position", &view<&SampleInputs::position>)
        .def_prop_ro("num_logprobs", &view<&SampleInputs::num_logprobs>)
        .def_prop_ro("target", &view<&SampleInputs::target>)
        .def_prop_ro("masked", &view<&SampleInputs::masked>)
        .def_prop_ro("mask", &mask_view, "[max_rows, words]: bit i of word j allows token 32 j + i, where `masked` is set.")
        .def_prop_ro("token_ids", &view<&SampleInputs::token_ids>)
        .def_prop_ro("logprobs", &view<&SampleInputs::logprobs>)
        .def_prop_ro("ranks", &view<&SampleInputs::ranks>)
        .def_prop_ro("status", &view<&SampleInputs::status>, "0: ok; 1: every logit is NaN or -inf; 2: no token is allowed.")
        .def_prop_ro("top_ids", &top_view<&SampleInputs::top_ids>)
        .def_prop_ro("top_logprobs", &top_view<&SampleInputs::top_logprobs>)
        .def("set_row", &SampleInputs::set_row, nb::arg("row"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
             nb::arg("min_p"), nb::arg("repetition_penalty"), nb::arg("presence_penalty"), nb::arg("frequency_penalty"), nb::arg("seed"),
             nb::arg("sequence"), nb::arg("num_logprobs"),
             "A row that samples, with no mask, bias or penalised tokens; a tenth of the time that its arrays one by one would take.")
        .def(
            "set_bias",
            [](SampleInputs& self, int row, Array1<const int32_t> ids, Array1<const float> values) {
                self.set_bias(row, span_of(ids), span_of(values));
            },
            nb::arg("row"), nb::arg("ids"), nb::arg("values"), "logits[ids] += values in this row; -inf bans.")
        .def(
            "set_penalties",
            [](SampleInputs& self, int row, std::shared_ptr<TokenCounts> counts, const std::vector<int32_t>& drafts) {
                self.set_penalties(row, std::move(counts), drafts);
            },
            nb::arg("row"), nb::arg("counts"), nb::arg("drafts") = std::vector<int32_t>(),
            "The tokens that this row's penalties see: those counted, now or later, and the drafts before the row.")
        .def("set_rows", &SampleInputs::set_rows, nb::arg("sources"), nb::arg("positions"),
             "How many rows the step has, and the row of logits and the position of each.")
        .def("move_rows", &SampleInputs::move_rows, nb::arg("moves"), "Copies what is asked of rows, (from, to) by (from, to).")
        .def("sampled", &sampled, "The token of each row; None where one failed.")
        .def("clear_lists", &SampleInputs::clear_lists, nb::arg("row"), "Takes bias and penalties off a row.");

    m.def("sample", &sample_rows, nb::arg("isa"), nb::arg("pool"), nb::arg("logits"), nb::arg("inputs"),
          "Samples inputs.rows rows from logits [*, vocab]; the outputs are arrays of the inputs.");
}

}  // namespace octavo
