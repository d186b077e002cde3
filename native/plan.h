// How the attention of a step is shared out: by whole items where there are enough, cut between two ranges of keys where there are not.
//
// An item is up to kItemRows rows (a row is one query head of one token) of one kv head of one sequence, over all the keys they see. A
// thread takes a contiguous run of (item, range) pairs. Where a run starts inside an item, its partials are kept apart, a slot each, for
// attention_merge: merging is not associative in its bits, so it must go range by range from the first one. Nothing here touches a tensor.
#pragma once

#include "ops.h"

namespace octavo {

constexpr int kRange = 256;   // keys of one partial
constexpr int kKeyTile = 16;  // tokens of one tile of the cache
constexpr int kMaxHeadDim = 256;
constexpr int kItemRows = 48;
constexpr int kLargestI16 = 4095;  // of keys and values in 16 bits: 64 products with 8191 have 31 bits

static inline int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// A tile, of keys and of values: two dimensions, or two tokens, side by side, which instructions for pairs want; else all lanes of one
// dimension, or of one token, side by side. Behind a tile of i8 or i16 stand the scales of its tokens, float32.
//   f16, bf16, i8, i16  keys [dim / 2][16][2]   values [8][dim][2]
//   f32, e4m3, e5m2     keys [dim][16]          values [16][dim]
static constexpr bool scaled(CacheType type) { return type == CacheType::i8 || type == CacheType::i16; }
static constexpr bool in_pairs(CacheType type) { return type == CacheType::f16 || type == CacheType::bf16 || scaled(type); }
static constexpr int element_bytes(CacheType type) {
    return type == CacheType::f32 ? 4 : type == CacheType::f16 || type == CacheType::bf16 || type == CacheType::i16 ? 2 : 1;
}
static inline int64_t tile_bytes(CacheType type, int head_dim) {
    return int64_t{kKeyTile} * (padded_dim(head_dim) * element_bytes(type) + (scaled(type) ? 4 : 0));
}

struct AttentionItem {
    int seq, head, tile;
    int first_row, rows;  // rows of (sequence, kv head), numbered token * group + query head in the group
    int begin, end;       // keys that any of the rows sees
    int first_range() const { return begin / kRange; }
    int end_range() const { return (end + kRange - 1) / kRange; }
};

// Where a thread's run starts: an item, and a range of it; `slot` is where its partials go if that is not the item's first range.
struct AttentionCut {
    int seq, head, tile, range;
    bool inside;
    int64_t slot;
};

static inline int tokens_of(const AttentionArgs& a, int seq) { return a.query_start[seq + 1] - a.query_start[seq]; }
static inline int group_of(const AttentionArgs& a) { return a.heads / a.cache.kv_heads; }
static inline int tiles_of(const AttentionArgs& a, int seq) {
    return static_cast<int>((int64_t{tokens_of(a, seq)} * group_of(a) + kItemRows - 1) / kItemRows);
}

// The keys [begin, end) that the query at `position` sees.
static inline int keys_begin(const AttentionArgs& a, int position) {
    return a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
}
static inline int keys_end(int position) { return position + 1; }

static inline AttentionItem item_at(const AttentionArgs& a, int seq, int head, int tile) {
    AttentionItem item;
    item.seq = seq, item.head = head, item.tile = tile;
    const int group = group_of(a), total = tokens_of(a, seq) * group;
    item.first_row = tile * kItemRows;
    item.rows = total - item.first_row < kItemRows ? total - item.first_row : kItemRows;
    const int before = a.seq_lens[seq] - tokens_of(a, seq);
    item.begin = keys_begin(a, before + item.first_row / group);
    item.end = keys_end(before + (item.first_row + item.rows - 1) / group);
    return item;
}

// The first item at or after (seq, head, tile); false at the end.
static inline bool settle(const AttentionArgs& a, AttentionItem& item, int seq, int head, int tile) {
    while (seq < a.seqs && tile >= tiles_of(a, seq)) {
        tile = 0;
        if (++head >= a.cache.kv_heads || tiles_of(a, seq) == 0) head = 0, ++seq;
    }
    if (seq >= a.seqs) return false;
    item = item_at(a, seq, head, tile);
    return true;
}

static inline bool same_item(const AttentionItem& item, const AttentionCut& cut) {
    return item.seq == cut.seq && item.head == cut.head && item.tile == cut.tile;
}
// Whether any of the item lies before the cut.
static inline bool starts_before(const AttentionItem& item, const AttentionCut& cut) {
    if (item.seq != cut.seq) return item.seq < cut.seq;
    if (item.head != cut.head) return item.head < cut.head;
    if (item.tile != cut.tile) return item.tile < cut.tile;
    return cut.inside;
}

// Floats of a slot: o [rows, dim], m [rows], l [rows].
static inline int64_t slot_floats(int rows, int dim) { return (int64_t{rows} * (dim + 2) + 15) / 16 * 16; }
// Floats of all slots: what four sequences of the longest context need when every range of them is kept apart.
static inline int64_t pool_floats(int heads, int dim, int64_t max_seq_len) {
    return 4 * ((max_seq_len + kRange - 1) / kRange) * int64_t{heads} * (dim + 18);
}

// Fills cuts[0 .. threads]: thread t runs from cuts[t] to cuts[t + 1]. Every thread computes the same plan for itself.
void plan_attention(const AttentionArgs& a, int threads, AttentionCut* cuts);

}  // namespace octavo
