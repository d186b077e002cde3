// The sampler: greedy and drawn rows with every filter, mask, bias and penalty, and logprobs.
#include <memory>

#include "isa_check.h"
#include "sample_inputs.h"

namespace check {

using namespace octavo;

namespace {

constexpr int kKinds = 12, kRowsEach = 4, kMaxLogprobs = 20;
constexpr const char* kNames[kKinds] = {"greedy",       "temperature", "top_k", "top_p", "min_p",     "top_k and top_p",
                                        "narrow top_p", "all filters", "mask",  "bias",  "penalties", "target"};

void fill_row(SampleInputs& inputs, int r, Random& random) {
    const int kind = r / kRowsEach, vocab = inputs.vocab;
    const auto at = static_cast<size_t>(r);
    inputs.seed[at] = random.bits();
    inputs.sequence[at] = random.below(4);
    inputs.position[at] = random.below(5000);
    inputs.temperature[at] = kind == 0 ? 0.0f : random.uniform(0.3f, 1.8f);
    inputs.num_logprobs[at] = r % 4 == 0 ? -1 : r % 4 == 1 ? 0 : r % 4 == 2 ? 5 : kMaxLogprobs;
    if (kind == 2 || kind == 5 || kind == 7) inputs.top_k[at] = 1 + random.below(kind == 2 ? vocab : 60);
    if (kind == 3 || kind == 5 || kind == 7) inputs.top_p[at] = random.uniform(0.5f, 0.99f);
    if (kind == 6) inputs.top_p[at] = 0.02f;
    if (kind == 4 || kind == 7) inputs.min_p[at] = random.uniform(0.001f, 0.2f);
    if (kind == 8) {
        inputs.masked[at] = 1;
        auto* words = reinterpret_cast<uint32_t*>(inputs.mask.data()) + r * inputs.mask_words;
        for (int i = 0; i < inputs.mask_words; ++i) words[i] = i % 3 ? static_cast<uint32_t>(random.bits()) : i % 2 ? 0xffffffffu : 0u;
    }
    if (kind == 9) {
        std::vector<int32_t> ids;
        std::vector<float> values;
        for (int i = 0; i < 30; ++i) ids.push_back(random.below(vocab)), values.push_back(i < 3 ? -INFINITY : random.uniform(-5.0f, 5.0f));
        inputs.set_bias(r, ids, values);
    }
    if (kind == 10) {
        std::vector<int32_t> prompt;
        for (int i = 0; i < 50; ++i) prompt.push_back(random.below(vocab));
        auto counts = std::make_shared<TokenCounts>(prompt);
        for (int i = 0; i < 60; ++i) counts->add(i % 2 ? prompt[static_cast<size_t>(random.below(50))] : random.below(vocab));
        inputs.set_penalties(r, counts, {});
        inputs.repetition_penalty[at] = 1.3f;
        inputs.presence_penalty[at] = 0.4f;
        inputs.frequency_penalty[at] = 0.2f;
    }
    if (kind == 11) inputs.target[at] = random.below(vocab);
}

std::unique_ptr<SampleInputs> make_inputs(int vocab, int threads) {
    auto inputs = std::make_unique<SampleInputs>(kKinds * kRowsEach, vocab, kMaxLogprobs, threads);
    Random random(static_cast<uint64_t>(vocab));
    inputs->rows = inputs->max_rows;
    for (int r = 0; r < inputs->rows; ++r) fill_row(*inputs, r, random);
    for (auto* list : {&inputs->token_ids, &inputs->ranks, &inputs->status, &inputs->top_ids})
        for (int32_t& value : *list) value = -7;
    for (auto* list : {&inputs->logprobs, &inputs->top_logprobs})
        for (float& value : *list) value = NAN;
    return inputs;
}

// Row `r` and no other.
SampleArgs only_row(SampleArgs a, int r) {
    a.rows = 1;
    a.source += r, a.temperature += r, a.top_k += r, a.top_p += r, a.min_p += r, a.repetition_penalty += r, a.presence_penalty += r;
    a.frequency_penalty += r, a.seed += r, a.sequence += r, a.position += r, a.num_logprobs += r, a.target += r, a.masked += r;
    a.mask += r * a.mask_words;
    a.bias += r, a.penalties += r, a.token_ids += r, a.logprobs += r, a.ranks += r, a.status += r;
    a.top_ids += r * a.top_stride, a.top_logprobs += r * a.top_stride;
    return a;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) { return std::memcmp(a.data(), b.data(), 4 * a.size()) == 0; }
bool same(const SampleInputs& a, const SampleInputs& b) {
    return a.token_ids == b.token_ids && a.ranks == b.ranks && a.status == b.status && a.top_ids == b.top_ids &&
           same_bits(a.logprobs, b.logprobs) && same_bits(a.top_logprobs, b.top_logprobs);
}

// Logprobs differ by the roundings of exp and of its sums; tokens, ranks and alternatives must be equal: with these seeds no draw falls on
// a border between two tokens.
void compare(Context& c, const SampleInputs& got, const SampleInputs& want, int kind, const std::string& vocab, const std::string& broken) {
    double worst = 0.0;
    auto number = [&](float a, float b) {
        worst = std::fmax(worst, part_of(static_cast<double>(a), static_cast<double>(b), 2e-6 * (1.0 + std::fabs(b))));
    };
    auto equal = [&](int32_t a, int32_t b) { worst = std::fmax(worst, a == b ? 0.0 : kInfinite); };
    for (int r = kind * kRowsEach; r < (kind + 1) * kRowsEach; ++r) {
        const auto at = static_cast<size_t>(r);
        equal(got.token_ids[at], want.token_ids[at]);
        equal(got.status[at], want.status[at]);
        equal(got.ranks[at], want.ranks[at]);
        number(got.logprobs[at], want.logprobs[at]);
        for (size_t i = at * kMaxLogprobs; i < (at + 1) * kMaxLogprobs; ++i) {
            equal(got.top_ids[i], want.top_ids[i]);
            number(got.top_logprobs[i], want.top_logprobs[i]);
        }
    }
    c.report(std::string("sampler ") + kNames[kind] + ", vocabulary of " + vocab, worst, broken);
}

}  // namespace

void check_sampler(Context& c) {
    for (int vocab : {100, 1009, 9001}) {
        Random random(static_cast<uint64_t>(vocab + 1));
        Matrix logits = Matrix::normal(kKinds * kRowsEach, vocab, random, 2.0f);
        logits.row(1)[vocab / 2] = NAN;
        logits.row(2)[vocab - 1] = logits.row(2)[3] = 20.0f;  // a tie
        for (int i = 0; i < vocab; ++i) logits.row(3)[i] = std::round(logits.row(3)[i]);
        auto run = [&](const KernelTable& table, int threads) {
            auto inputs = make_inputs(vocab, threads);
            const SampleArgs args = inputs->args(logits.row(0), logits.stride, logits.rows);
            for (int thread = 0; thread < threads; ++thread) table.sample(args, thread, threads);
            return inputs;
        };
        const auto want = run(c.scalar, 1), got = run(c.table, 1), shared = run(c.table, 3);
        auto alone = make_inputs(vocab, 1);
        const SampleArgs args = alone->args(logits.row(0), logits.stride, logits.rows);
        for (int r = alone->rows - 1; r >= 0; --r) c.table.sample(only_row(args, r), 0, 1);
        const std::string broken = !same(*got, *shared)  ? "other bits with 3 threads"
                                   : !same(*got, *alone) ? "other bits for a row alone"
                                                         : "";
        for (int kind = 0; kind < kKinds; ++kind) compare(c, *got, *want, kind, std::to_string(vocab), broken);
    }
}

}  // namespace check
