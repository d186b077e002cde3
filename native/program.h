// A recorded model: a list of ops over fixed buffers, replayed once per step by all threads of the pool.
//
// It is built once at start-up. Every op holds its kernel's arguments with final pointers; only the row counts of a step vary. Segments are
// ranges of ops that may be run apart (a pipeline cut, a host break); by default one call runs them all.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv_cache.h"
#include "memory.h"
#include "ops.h"
#include "pack.h"
#include "sample_inputs.h"
#include "thread_pool.h"

namespace octavo {

// What the rows of a buffer count.
enum class Rows : uint8_t { tokens, seqs, outputs };

// What the entries of a cache group's arrays must keep to, for all layers of the group.
struct GroupLimits {
    int64_t num_blocks;
    int block_size, window;
    int64_t max_seq_len;  // that the attention's scratch is for
    bool operator==(const GroupLimits&) const = default;
};

// The arrays of a step that the host fills in place; sizes are fixed at start.
//
// Nothing in them is trusted: each run checks counts, and each op that reads indices has them checked before the first op of the run.
// Exceptions are std::out_of_range and name the array.
struct StepInputs {
    struct Group {                          // one cache group
        std::vector<int64_t> slot_mapping;  // [max_tokens]
        std::vector<int32_t> block_table;   // [max_seqs, max_blocks]
        std::vector<int32_t> opened;        // blocks to clear: as many as the step admits, up to the whole pool
        std::vector<int32_t> copy_source, copy_target;
        std::vector<int64_t> num_blocks;  // [max_seqs] how many entries of each row of block_table are set
        int64_t max_blocks;
        int num_copies = 0;

        void set_blocks(int row, int64_t first, const std::vector<int32_t>& blocks);  // the entries from `first` on are these
    };

    StepInputs(int max_tokens, int max_seqs, int max_rows, const std::vector<int64_t>& max_blocks);
    // What such arrays take.
    static int64_t bytes(int max_tokens, int max_seqs, int max_rows, const std::vector<int64_t>& max_blocks);

    int max_tokens, max_seqs, max_rows;
    int tokens = 0, seqs = 0, rows = 0;
    std::vector<int32_t> token_ids, positions;  // [max_tokens]
    std::vector<int32_t> query_start;           // [max_seqs + 1]
    std::vector<int32_t> seq_lens;              // [max_seqs]
    std::vector<int32_t> output_rows;           // [max_rows]
    std::vector<Group> groups;

    int count(Rows kind) const { return kind == Rows::tokens ? tokens : kind == Rows::seqs ? seqs : rows; }
    int capacity(Rows kind) const { return kind == Rows::tokens ? max_tokens : kind == Rows::seqs ? max_seqs : max_rows; }

    // Makes the rows from the first on sequences of one token each, of which logits are wanted. Returns the rows whose block table does
    // not reach the position yet; with none, all is written.
    std::vector<int> write_decodes(const std::vector<int32_t>& ids, const std::vector<int32_t>& where, int block_size);
    // Copies rows of the block tables, (from, to) by (from, to).
    void move_rows(const std::vector<std::pair<int, int>>& moves);

    void check_counts() const;  // and query_start
    void check_token_ids(int64_t vocab) const;
    void check_output_rows() const;
    void check_updates(size_t group, int64_t num_blocks) const;  // blocks copied and opened
    void check_group(size_t group, const GroupLimits& limits) const;
};

class Program {
  public:
    using Op = std::function<void(int share, int shares)>;
    using RowOp = std::function<void(Range rows)>;
    using HostOp = std::function<void()>;

    Program(const KernelTable* table, std::shared_ptr<ThreadPool> pool, std::shared_ptr<StepInputs> inputs, int64_t workspace_bytes);
    // In the workspace of another one, for inputs of its own: one of them runs at a time.
    Program(const Program& beside, std::shared_ptr<StepInputs> inputs);
    Program(const Program&) = delete;

    void push(Op op, const char* name) { ops_.push_back({std::move(op), nullptr, nullptr, {}, name}); }
    // An op whose every row reads and writes the same row of what ops of equal `rows` before it have written. Such ops that follow one
    // another are run together, a few rows at a time: nobody waits between them, and a row is still in the nearest cache.
    void push_rows(RowOp op, Rows rows, const char* name) { ops_.push_back({nullptr, std::move(op), nullptr, rows, name}); }
    void push_host(HostOp op, const char* name) { ops_.push_back({nullptr, nullptr, std::move(op), {}, name}); }
    void prepare(HostOp op) { prepare_.push_back(std::move(op)); }  // done by the caller before the first op of a run
    void cut() { segment_ends_.push_back(ops_.size()); }            // ends a segment

    // Runs segments [first, last) of the step described by the inputs; -1 means to the end.
    void run(int first, int last);
    void run_share(int op, int number);  // of an op that has one for each thread, by itself

    // Where `rows` rows of `row_bytes` bytes start in the workspace; std::out_of_range where they do not lie in it.
    template <class T>
    T* at(int64_t offset, int64_t rows, int64_t row_bytes) const {
        check_place(offset, rows, row_bytes);
        return reinterpret_cast<T*>(workspace_->data() + offset);
    }

    const KernelTable* const table;
    const std::shared_ptr<ThreadPool> pool;
    const std::shared_ptr<StepInputs> inputs;
    int segments() const { return static_cast<int>(segment_ends_.size()); }
    int64_t workspace_bytes() const { return workspace_->bytes(); }
    std::vector<std::string> op_names() const;
    int64_t runs = 0;                                // native calls made, for those who count
    std::vector<std::optional<GroupLimits>> limits;  // of each cache group that attention reads

    // Time spent in each op, summed over runs while `profile` is set; seconds, of share 0.
    bool profile = false;
    std::vector<double> seconds;

  private:
    struct Entry {
        Op op;
        RowOp row_op;
        HostOp host;
        Rows rows;
        const char* name;
    };
    void run_ops(size_t begin, size_t end);
    void run_rows(size_t begin, size_t end, int number, int shares);
    void check_place(int64_t offset, int64_t rows, int64_t row_bytes) const;

    std::shared_ptr<Memory> workspace_;
    std::vector<Entry> ops_;
    std::vector<HostOp> prepare_;
    struct Group {
        size_t begin, end;
    };
    std::vector<size_t> segment_ends_;
};

}  // namespace octavo
