#include "plan.h"

#include <algorithm>

namespace octavo {
namespace {

// In tiles of keys times rows; a tile's own cost (loading it) is that of four rows.
int64_t cost_of(const AttentionItem& item) {
    return ((item.end + kKeyTile - 1) / kKeyTile - item.begin / kKeyTile) * int64_t{item.rows + 4};
}

int64_t cost_of_head(const AttentionArgs& a, int seq) {
    int64_t cost = 0;
    for (int tile = 0, tiles = tiles_of(a, seq); tile < tiles; ++tile) cost += cost_of(item_at(a, seq, 0, tile));
    return cost;
}

// The cut at `rest` cost units into the sequence; at an item's edge if that is within `snap` of it.
AttentionCut locate(const AttentionArgs& a, int seq, int64_t per_head, int64_t rest, int64_t snap) {
    AttentionCut cut{seq, static_cast<int>(rest / per_head), 0, 0, false, 0};
    rest %= per_head;
    AttentionItem item = item_at(a, seq, cut.head, 0);
    while (rest >= cost_of(item)) {
        rest -= cost_of(item);
        item = item_at(a, seq, cut.head, ++cut.tile);
    }
    const int64_t cost = cost_of(item);
    const int first = item.first_range(), ranges = item.end_range() - first;
    const bool near_start = rest <= snap, near_end = cost - rest <= snap;
    if (near_end && (!near_start || rest > cost - rest)) {
        ++cut.tile;
        if (settle(a, item, cut.seq, cut.head, cut.tile))
            cut.seq = item.seq, cut.head = item.head, cut.tile = item.tile;
        else
            cut = {a.seqs, 0, 0, 0, false, 0};
        return cut;
    }
    if (near_start) return cut;
    const int whole = static_cast<int>(rest * ranges / cost);
    cut.range = first + whole;
    cut.inside = whole > 0;
    return cut;
}

// Gives every run that starts inside an item its slots; returns the floats of all.
int64_t place_slots(const AttentionArgs& a, int threads, AttentionCut* cuts) {
    const int dim = padded_dim(a.cache.head_dim);
    int64_t used = 0;
    for (int t = 1; t < threads; ++t) {
        AttentionCut &cut = cuts[t], &next = cuts[t + 1];
        cut.slot = used;
        if (!cut.inside) continue;
        AttentionItem item = item_at(a, cut.seq, cut.head, cut.tile);
        const int end = next.inside && same_item(item, next) ? next.range : item.end_range();
        used += (end - cut.range) * slot_floats(item.rows, dim);
    }
    return used;
}

void place_cuts(const AttentionArgs& a, int threads, int64_t total, int64_t snap, AttentionCut* cuts) {
    cuts[0] = {0, 0, 0, 0, false, 0};
    int t = 1;
    int64_t before = 0;
    for (int seq = 0; seq < a.seqs && t < threads; ++seq) {
        const int64_t per_head = cost_of_head(a, seq);
        const int64_t after = before + per_head * a.cache.kv_heads;
        for (; t < threads && total * t / threads < after; ++t) cuts[t] = locate(a, seq, per_head, total * t / threads - before, snap);
        before = after;
    }
    for (; t <= threads; ++t) cuts[t] = {a.seqs, 0, 0, 0, false, 0};
}

}  // namespace

void plan_attention(const AttentionArgs& a, int threads, AttentionCut* cuts) {
    int64_t total = 0, longest = 0;
    if (threads > 1)
        for (int seq = 0; seq < a.seqs; ++seq) {
            total += cost_of_head(a, seq) * a.cache.kv_heads;
            longest = std::max<int64_t>(longest, a.seq_lens[seq]);
        }
    // A sixteenth of a thread's share out of balance costs less than to keep partials and to merge them.
    place_cuts(a, threads, total, total / threads / 16, cuts);
    if (place_slots(a, threads, cuts) <= pool_floats(a.heads, padded_dim(a.cache.head_dim), longest)) return;
    place_cuts(a, threads, total, total, cuts);
    place_slots(a, threads, cuts);
}

}  // namespace octavo
