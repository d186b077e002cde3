#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace octavo {
namespace {

// Adds the time of its life to *seconds, where there is one.
class Timer {
  public:
    explicit Timer(double* seconds) : seconds_(seconds), start_(seconds ? Clock::now() : Clock::time_point{}) {}
    ~Timer() {
        if (seconds_) *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
    }

  private:
    using Clock = std::chrono::steady_clock;
    double* seconds_;
    Clock::time_point start_;
};

void refuse(const char* array, int64_t value, int64_t low, int64_t high) {
    throw std::out_of_range(std::string(array) + " holds " + std::to_string(value) + ", which is not from " + std::to_string(low) + " to " +
                            std::to_string(high) + ".");
}

// Whether all of `count` values are from low to high; the first that is not is named.
template <class T>
void check_values(const char* array, const T* values, int64_t count, int64_t low, int64_t high) {
    for (int64_t i = 0; i < count; ++i)
        if (values[i] < low || values[i] > high) refuse(array, values[i], low, high);
}

}  // namespace

int64_t StepInputs::bytes(int max_tokens, int max_seqs, int max_rows, const std::vector<int64_t>& max_blocks) {
    constexpr int64_t kMost = INT32_MAX;
    check_values("max_tokens", &max_tokens, 1, 1, kMost);
    check_values("max_seqs", &max_seqs, 1, 1, KVCache::kMostCopies);  // each may bring a copy
    check_values("max_rows", &max_rows, 1, 1, kMost);
    check_values("max_blocks", max_blocks.data(), static_cast<int64_t>(max_blocks.size()), 1, kMost);
    int64_t ints = 2 * int64_t{max_tokens} + 2 * int64_t{max_seqs} + 1 + max_rows;
    for (int64_t blocks : max_blocks) ints += 2 * int64_t{max_tokens} + (blocks + 4) * max_seqs;
    return ints * int64_t{sizeof(int32_t)};
}

StepInputs::StepInputs(int max_tokens, int max_seqs, int max_rows, const std::vector<int64_t>& max_blocks)
    : max_tokens(max_tokens), max_seqs(max_seqs), max_rows(max_rows) {
    bytes(max_tokens, max_seqs, max_rows, max_blocks);  // refuses what cannot be
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
        group.num_blocks.resize(static_cast<size_t>(max_seqs));
        groups.push_back(std::move(group));
    }
}

void StepInputs::Group::set_blocks(int row, int64_t first, const std::vector<int32_t>& blocks) {
    check_values("row", &row, 1, 0, static_cast<int64_t>(num_blocks.size()) - 1);
    const int64_t end = first + static_cast<int64_t>(blocks.size());
    check_values("first", &first, 1, 0, max_blocks);
    check_values("blocks", &end, 1, 0, max_blocks);
    std::copy(blocks.begin(), blocks.end(), block_table.begin() + row * max_blocks + first);
    num_blocks[static_cast<size_t>(row)] = end;
}

std::vector<int> StepInputs::write_decodes(const std::vector<int32_t>& ids, const std::vector<int32_t>& where, int block_size) {
    const int count = static_cast<int>(ids.size());
    if (where.size() != ids.size()) throw std::invalid_argument("write_decodes takes as many positions as token ids.");
    if (block_size < 1) throw std::invalid_argument("A block has at least one slot.");
    check_values("decodes", &count, 1, 0, std::min({max_tokens, max_seqs, max_rows}));
    check_values("positions", where.data(), count, 0, INT32_MAX - 1);
    std::vector<int> lacking;
    for (int i = 0; i < count; ++i) {
        const size_t row = static_cast<size_t>(i);
        const int64_t block = where[row] / block_size, offset = where[row] % block_size;
        token_ids[row] = ids[row];
        positions[row] = where[row];
        seq_lens[row] = where[row] + 1;
        query_start[row + 1] = i + 1;
        output_rows[row] = i;
        bool lacks = false;
        for (Group& group : groups) {
            if (block < group.num_blocks[row])
                group.slot_mapping[row] =
                    group.block_table[static_cast<size_t>(i * group.max_blocks + block)] * int64_t{block_size} + offset;
            else
                lacks = true;
        }
        if (lacks) lacking.push_back(i);
    }
    return lacking;
}

void StepInputs::move_rows(const std::vector<std::pair<int, int>>& moves) {
    for (auto [from, to] : moves) {
        check_values("from", &from, 1, 0, max_seqs - 1);
        check_values("to", &to, 1, 0, max_seqs - 1);
        for (Group& group : groups) {
            const auto source = group.block_table.begin() + from * group.max_blocks;
            const int64_t count = group.num_blocks[static_cast<size_t>(to)] = group.num_blocks[static_cast<size_t>(from)];
            if (from != to) std::copy(source, source + count, group.block_table.begin() + to * group.max_blocks);
        }
    }
}

void StepInputs::check_counts() const {
    check_values("tokens", &tokens, 1, 0, max_tokens);
    check_values("seqs", &seqs, 1, 0, max_seqs);
    check_values("rows", &rows, 1, 0, max_rows);
    check_values("query_start", query_start.data(), 1, 0, 0);
    for (int seq = 0; seq < seqs; ++seq)
        check_values("query_start", &query_start[static_cast<size_t>(seq) + 1], 1, query_start[static_cast<size_t>(seq)], tokens);
}

void StepInputs::check_token_ids(int64_t vocab) const { check_values("token_ids", token_ids.data(), tokens, 0, vocab - 1); }

void StepInputs::check_output_rows() const { check_values("output_rows", output_rows.data(), rows, 0, tokens - 1); }

void StepInputs::check_updates(size_t group, int64_t num_blocks) const {
    const Group& g = groups[group];
    check_values("num_copies", &g.num_copies, 1, 0, max_seqs);
    check_values("copy_source", g.copy_source.data(), g.num_copies, 0, num_blocks - 1);
    check_values("copy_target", g.copy_target.data(), g.num_copies, 0, num_blocks - 1);
    check_values("opened", g.opened.data(), static_cast<int64_t>(g.opened.size()), 0, num_blocks - 1);
}

void StepInputs::check_group(size_t group, const GroupLimits& limits) const {
    const Group& g = groups[group];
    check_values("slot_mapping", g.slot_mapping.data(), tokens, -1, limits.num_blocks * limits.block_size - 1);
    const int64_t longest = std::min(limits.max_seq_len, g.max_blocks * limits.block_size);
    for (int seq = 0; seq < seqs; ++seq) {
        const int64_t start = query_start[static_cast<size_t>(seq)], count = query_start[static_cast<size_t>(seq) + 1] - start;
        if (count == 0) continue;
        check_values("seq_lens", &seq_lens[static_cast<size_t>(seq)], 1, count, longest);
        // What lies wholly behind the window is never read.
        const int64_t length = seq_lens[static_cast<size_t>(seq)];
        const int64_t first = limits.window > 0 ? std::max<int64_t>(0, length - count - limits.window + 1) / limits.block_size : 0;
        const int64_t end = (length + limits.block_size - 1) / limits.block_size;
        check_values("block_table", &g.block_table[static_cast<size_t>(seq * g.max_blocks + first)], end - first, 0, limits.num_blocks - 1);
    }
}

Program::Program(const KernelTable* table, std::shared_ptr<ThreadPool> pool, std::shared_ptr<StepInputs> inputs, int64_t workspace_bytes)
    : table(table),
      pool(std::move(pool)),
      inputs(std::move(inputs)),
      limits(this->inputs->groups.size()),
      workspace_(std::make_shared<Memory>(workspace_bytes)) {}

Program::Program(const Program& beside, std::shared_ptr<StepInputs> inputs)
    : table(beside.table),
      pool(beside.pool),
      inputs(std::move(inputs)),
      limits(this->inputs->groups.size()),
      workspace_(beside.workspace_) {}

void Program::check_place(int64_t offset, int64_t rows, int64_t row_bytes) const {
    const int64_t size = workspace_->bytes();
    if (offset < 0 || offset > size || rows < 0 || row_bytes < 0 || (row_bytes > 0 && rows > (size - offset) / row_bytes))
        throw std::out_of_range(std::to_string(rows) + " rows of " + std::to_string(row_bytes) + " bytes from " + std::to_string(offset) +
                                " on do not lie in a workspace of " + std::to_string(size) + " bytes.");
}

void Program::run(int first, int last) {
    if (last < 0) last = segments();
    if (first < 0 || first > last || last > segments())
        throw std::out_of_range("Program has " + std::to_string(segments()) + " segments; asked for " + std::to_string(first) + " to " +
                                std::to_string(last) + ".");
    ++runs;
    if (first == last) return;
    inputs->check_counts();
    for (auto& op : prepare_) op();
    size_t begin = first == 0 ? 0 : segment_ends_[static_cast<size_t>(first) - 1];
    size_t end = segment_ends_[static_cast<size_t>(last) - 1];
    while (begin < end) {
        size_t stop = begin;
        while (stop < end && !ops_[stop].host) ++stop;
        if (stop > begin) run_ops(begin, stop);
        if (stop < end) ops_[stop++].host();
        begin = stop;
    }
}

void Program::run_share(int op, int number) {
    check_values("op", &op, 1, 0, static_cast<int64_t>(ops_.size()) - 1);
    check_values("number", &number, 1, 0, pool->threads() - 1);
    const Op& body = ops_[static_cast<size_t>(op)].op;
    if (!body) throw std::invalid_argument("An op of rows, or of the host, does not have a share for each thread.");
    inputs->check_counts();
    for (auto& prepare : prepare_) prepare();
    body(number, pool->threads());
}

void Program::run_ops(size_t begin, size_t end) {
    if (profile) seconds.resize(ops_.size(), 0.0);
    std::vector<Group> groups;  // what is computed together
    for (size_t i = begin; i < end;) {
        const size_t first = i++;
        while (ops_[first].row_op && i < end && ops_[i].row_op && ops_[i].rows == ops_[first].rows) ++i;
        groups.push_back({first, i});
    }
    const auto shares_of = [&](int group) {
        const Entry& first = ops_[groups[static_cast<size_t>(group)].begin];
        return first.row_op ? std::clamp(inputs->count(first.rows), 1, pool->threads()) : pool->threads();
    };
    pool->run(static_cast<int>(groups.size()), shares_of, [&](int group, int number, int shares) {
        const auto [first, last] = groups[static_cast<size_t>(group)];
        if (ops_[first].row_op) return run_rows(first, last, number, shares);
        const Timer timer(profile && number == 0 ? &seconds[first] : nullptr);
        ops_[first].op(number, shares);
    });
}

// Ops [begin, end) of equal rows.
void Program::run_rows(size_t begin, size_t end, int number, int shares) {
    constexpr int64_t kRows = 16;  // of SmolLM2's 1,536 floats: 96 KiB
    const Range all = share(inputs->count(ops_[begin].rows), number, shares);
    for (int64_t row = all.begin; row < all.end; row += kRows)
        for (size_t i = begin; i < end; ++i) {
            const Timer timer(profile && number == 0 ? &seconds[i] : nullptr);
            ops_[i].row_op({row, std::min(row + kRows, all.end)});
        }
}

std::vector<std::string> Program::op_names() const {
    std::vector<std::string> names;
    for (const auto& entry : ops_) names.emplace_back(entry.name);
    return names;
}

}  // namespace octavo
