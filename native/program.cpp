#include "program.h"

#include <chrono>
#include <stdexcept>

namespace octavo {

StepInputs::StepInputs(int max_tokens, int max_seqs, int max_rows, const std::vector<int64_t>& max_blocks)
    : max_tokens(max_tokens), max_seqs(max_seqs), max_rows(max_rows) {
    token_ids.resize(static_cast<size_t>(max_tokens));
    positions.resize(static_cast<size_t>(max_tokens));
    query_start.resize(static_cast<size_t>(max_seqs) + 1);
    seq_lens.resize(static_cast<size_t>(max_seqs));
    output_rows.resize(static_cast<size_t>(max_rows));
    for (int64_t blocks : max_blocks) {
        Group group;
        group.max_blocks = blocks;
        group.slot_mapping.resize(static_cast<size_t>(max_tokens));
        group.block_table.assign(static_cast<size_t>(max_seqs * blocks), -1);
        group.copy_source.resize(static_cast<size_t>(max_seqs));
        group.copy_target.resize(static_cast<size_t>(max_seqs));
        groups.push_back(std::move(group));
    }
}

Program::Program(const KernelTable* table, std::shared_ptr<ThreadPool> pool, std::shared_ptr<StepInputs> inputs, int64_t workspace_bytes)
    : table(table), pool(std::move(pool)), inputs(std::move(inputs)), workspace_(workspace_bytes) {}

void Program::run(int first, int last) {
    if (last < 0) last = segments();
    if (first < 0 || first > last || last > segments())
        throw std::out_of_range("Program has " + std::to_string(segments()) + " segments; asked for " + std::to_string(first) + " to " +
                                std::to_string(last) + ".");
    ++runs;
    if (first == last) return;
    for (auto& op : prepare_) op();
    size_t begin = first == 0 ? 0 : segment_ends_[static_cast<size_t>(first) - 1];
    size_t end = segment_ends_[static_cast<size_t>(last) - 1];
    while (begin < end) {
        size_t stop = begin;
        while (stop < end && ops_[stop].op) ++stop;
        if (stop > begin) run_ops(begin, stop);
        if (stop < end) ops_[stop++].host();
        begin = stop;
    }
}

void Program::run_ops(size_t begin, size_t end) {
    using clock = std::chrono::steady_clock;
    if (profile) seconds.resize(ops_.size(), 0.0);
    pool->run([&](int thread, int threads) {
        for (size_t i = begin; i < end; ++i) {
            auto start = profile && thread == 0 ? clock::now() : clock::time_point{};
            ops_[i].op(thread, threads);
            pool->barrier();
            if (profile && thread == 0) seconds[i] += std::chrono::duration<double>(clock::now() - start).count();
        }
    });
}

std::vector<std::string> Program::op_names() const {
    std::vector<std::string> names;
    for (const auto& entry : ops_) names.emplace_back(entry.name);
    return names;
}

}  // namespace octavo
