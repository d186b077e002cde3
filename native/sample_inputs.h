// The sampler's rows as the host keeps them: arrays that it patches from step to step, and lists of tokens.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory.h"
#include "sampler.h"

namespace octavo {

// The distinct tokens of one sequence, with how often each is in its output: what penalties need, kept up token by token.
class TokenCounts {
  public:
    explicit TokenCounts(std::span<const int32_t> prompt) {
        for (int32_t id : prompt) slot(id);
    }
    void add(int32_t id) { ++counts[slot(id)]; }

    std::vector<int32_t> ids, counts;

  private:
    size_t slot(int32_t id) {
        auto [entry, is_new] = slots_.try_emplace(id, ids.size());
        if (is_new) {
            ids.push_back(id);
            counts.push_back(0);
        }
        return entry->second;
    }
    std::unordered_map<int32_t, size_t> slots_;
};

class SampleInputs {
  public:
    // Scratch is for `threads` threads, the most that may run the sampler on these inputs.
    SampleInputs(int max_rows, int vocab, int max_logprobs, int threads)
        : max_rows(max_rows), vocab(vocab), max_logprobs(max_logprobs), threads(threads), mask_words((vocab + 31) / 32) {
        if (max_rows < 1 || vocab < 1 || vocab > 1 << 30 || max_logprobs < 0 || threads < 1)
            throw std::invalid_argument(
                "SampleInputs needs at least one row, token (2^30 at most) and thread, and no negative max_logprobs.");
        size_t rows = static_cast<size_t>(max_rows);
        source.resize(rows);
        for (size_t r = 0; r < rows; ++r) source[r] = static_cast<int32_t>(r);
        temperature.resize(rows);
        top_k.resize(rows);
        top_p.assign(rows, 1.0f);
        min_p.resize(rows);
        repetition_penalty.assign(rows, 1.0f);
        presence_penalty.resize(rows);
        frequency_penalty.resize(rows);
        seed.resize(rows);
        sequence.resize(rows);
        position.resize(rows);
        num_logprobs.assign(rows, -1);
        target.assign(rows, -1);
        masked.resize(rows);
        mask = Memory(int64_t{max_rows} * mask_words * 4);
        bias.resize(rows);
        penalties.resize(rows);
        lists_.resize(rows);
        token_ids.resize(rows);
        logprobs.resize(rows);
        ranks.resize(rows);
        status.resize(rows);
        top_ids.resize(rows * static_cast<size_t>(max_logprobs));
        top_logprobs.resize(rows * static_cast<size_t>(max_logprobs));
        scratch = Memory(threads * sample_scratch(vocab));
    }
    SampleInputs(const SampleInputs&) = delete;

    // A whole row in one call: it samples, with no mask, bias or penalised tokens.
    void set_row(int row, float temperature_, int top_k_, float top_p_, float min_p_, float repetition, float presence, float frequency,
                 uint64_t seed_, int sequence_, int num_logprobs_) {
        clear_lists(row);
        size_t r = static_cast<size_t>(row);
        temperature[r] = temperature_;
        top_k[r] = top_k_;
        top_p[r] = top_p_;
        min_p[r] = min_p_;
        repetition_penalty[r] = repetition;
        presence_penalty[r] = presence;
        frequency_penalty[r] = frequency;
        seed[r] = seed_;
        sequence[r] = sequence_;
        num_logprobs[r] = num_logprobs_;
        target[r] = -1;
        masked[r] = 0;
    }

    // The step's rows: which row of logits each samples from, and for which position.
    void set_rows(const std::vector<int32_t>& sources, const std::vector<int64_t>& positions) {
        if (sources.size() != positions.size() || sources.size() > source.size())
            throw std::invalid_argument("The sampler has room for " + std::to_string(max_rows) +
                                        " rows, each with a source and a position.");
        std::copy(sources.begin(), sources.end(), source.begin());
        std::copy(positions.begin(), positions.end(), position.begin());
        rows = static_cast<int>(sources.size());
    }

    // Copies what is asked of rows, (from, to) by (from, to).
    void move_rows(const std::vector<std::pair<int, int>>& moves) {
        for (auto [from, to] : moves) {
            const size_t f = static_cast<size_t>(from), t = static_cast<size_t>(to);
            at(to) = at(from);
            for (auto* values : {&top_k, &sequence, &num_logprobs, &target}) (*values)[t] = (*values)[f];
            for (auto* values : {&temperature, &top_p, &min_p, &repetition_penalty, &presence_penalty, &frequency_penalty})
                (*values)[t] = (*values)[f];
            seed[t] = seed[f];
            masked[t] = masked[f];
            if (masked[f]) std::memmove(mask_row(t), mask_row(f), static_cast<size_t>(mask_words) * 4);
            bias[t] = {lists_[t].bias_ids.data(), lists_[t].bias_values.data(), bias[f].size};
            penalties[t] = penalties[f];
        }
    }

    void set_bias(int row, std::span<const int32_t> ids, std::span<const float> values) {
        if (ids.size() != values.size()) throw std::invalid_argument("set_bias takes as many values as ids.");
        Lists& lists = at(row);
        lists.bias_ids.assign(ids.begin(), ids.end());
        lists.bias_values.assign(values.begin(), values.end());
        bias[static_cast<size_t>(row)] = {lists.bias_ids.data(), lists.bias_values.data(), static_cast<int>(ids.size())};
    }

    // `drafts` are tokens between the counted ones and the row. The row holds `counts`, and sees what is added to it later.
    void set_penalties(int row, std::shared_ptr<const TokenCounts> counts, std::span<const int32_t> drafts) {
        Lists& lists = at(row);
        if (!drafts.empty()) {
            auto extended = std::make_shared<TokenCounts>(*counts);
            for (int32_t id : drafts) extended->add(id);
            counts = extended;
        }
        lists.counts = std::move(counts);
        refresh(row);
    }

    void clear_lists(int row) {
        at(row).counts.reset();
        bias[static_cast<size_t>(row)] = {};
        penalties[static_cast<size_t>(row)] = {};
    }

    // The kernel's arguments, for logits [logits_rows, vocab]; host side, once per step: the lists may have moved.
    SampleArgs args(const float* logits, int64_t logits_stride, int64_t logits_rows) {
        if (rows < 0 || rows > max_rows)
            throw std::out_of_range("The sampler has room for " + std::to_string(max_rows) + " rows, not " + std::to_string(rows) + ".");
        for (int r = 0; r < rows; ++r) {
            int32_t from = source[static_cast<size_t>(r)];
            if (from < 0 || from >= logits_rows)
                throw std::out_of_range("Sampled row " + std::to_string(r) + " names row " + std::to_string(from) + " of " +
                                        std::to_string(logits_rows) + " rows of logits.");
            if (lists_[static_cast<size_t>(r)].counts) refresh(r);
        }
        return {logits,
                logits_stride,
                rows,
                vocab,
                source.data(),
                temperature.data(),
                top_k.data(),
                top_p.data(),
                min_p.data(),
                repetition_penalty.data(),
                presence_penalty.data(),
                frequency_penalty.data(),
                seed.data(),
                sequence.data(),
                position.data(),
                num_logprobs.data(),
                target.data(),
                masked.data(),
                reinterpret_cast<uint32_t*>(mask.data()),
                mask_words,
                bias.data(),
                penalties.data(),
                token_ids.data(),
                logprobs.data(),
                ranks.data(),
                top_ids.data(),
                top_logprobs.data(),
                max_logprobs,
                status.data(),
                scratch.data()};
    }

    int64_t bytes() const { return scratch.bytes() + mask.bytes() + int64_t{max_rows} * (160 + 8 * max_logprobs); }

    const int max_rows, vocab, max_logprobs, threads, mask_words;
    int rows = 0;  // of this step
    std::vector<int32_t> source, top_k, sequence, num_logprobs, target;
    std::vector<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    std::vector<uint64_t> seed;
    std::vector<int64_t> position;
    std::vector<uint8_t> masked;
    Memory mask;  // [max_rows, mask_words]
    std::vector<TokenBias> bias;
    std::vector<TokenPenalties> penalties;
    std::vector<int32_t> token_ids, ranks, status, top_ids;
    std::vector<float> logprobs, top_logprobs;
    Memory scratch;

  private:
    struct Lists {
        std::vector<int32_t> bias_ids;
        std::vector<float> bias_values;
        std::shared_ptr<const TokenCounts> counts;
    };

    Lists& at(int row) {
        if (row < 0 || row >= max_rows)
            throw std::out_of_range("The sampler has " + std::to_string(max_rows) + " rows; there is no row " + std::to_string(row) + ".");
        return lists_[static_cast<size_t>(row)];
    }
    std::byte* mask_row(size_t row) { return mask.data() + row * static_cast<size_t>(mask_words) * 4; }
    void refresh(int row) {
        const TokenCounts& counts = *lists_[static_cast<size_t>(row)].counts;
        penalties[static_cast<size_t>(row)] = {counts.ids.data(), counts.counts.data(), static_cast<int>(counts.ids.size())};
    }

    std::vector<Lists> lists_;
};

}  // namespace octavo
