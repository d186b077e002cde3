// Paged attention: who computes which partial, where it is kept and how it becomes an output row; and the store into the cache. The
// arithmetic and the law that it keeps are in attention_rows.inl.
#include <algorithm>
#include <utility>

#include "attention_rows.inl"
#include "attention_integers.inl"
#ifdef OCTAVO_HAS_FLOAT_ROWS
#include "attention_wide.inl"
#endif

namespace octavo::ISA {

static inline void find_tiles(const AttentionArgs& a, const AttentionItem& item, int range, KeyTiles& tiles) {
    const int64_t bytes = tile_bytes(a.cache.type, a.cache.head_dim);
    const int per_block = a.cache.block_size / kKeyTile;
    tiles.base = range * kRange;
    const int begin = item.begin > tiles.base ? item.begin - tiles.base : 0;
    const int end = item.end - tiles.base < kRange ? item.end - tiles.base : kRange;
    tiles.begin = begin / kKeyTile;
    tiles.end = (end + kKeyTile - 1) / kKeyTile;
    const int32_t* table = a.block_table + item.seq * a.table_stride;
    for (int t = tiles.begin; t < tiles.end; ++t) {
        const int index = tiles.base / kKeyTile + t;
        const int64_t block = table[index / per_block];
        const int64_t at = ((block * a.cache.kv_heads + item.head) * per_block + index % per_block) * bytes;
        tiles.keys[t] = a.cache.keys + at;
        tiles.values[t] = a.cache.values + at;
    }
}

#ifndef OCTAVO_HAS_FLOAT_ROWS
// Of the keys, or of the values, of a range.
static inline int64_t plane_floats(int dim) { return int64_t{kRange} * dim; }
static inline int64_t wide_floats(int dim) { return 2 * plane_floats(dim); }

// A tile of pairs of T in the wide type.
template <class T>
static std::byte* widen_tile(const std::byte* tile, int64_t stride, int pairs, float* wide) {
    using Wide = typename T::wide;
    const auto* from = reinterpret_cast<const typename T::element*>(tile);
    auto* to = reinterpret_cast<typename Wide::element*>(wide);
    for (int64_t i = 0; i < pairs; ++i, from += 2 * stride, to += 2 * stride)
        for (int64_t lane = 0; lane < stride; lane += W)
            Wide::put(to + lane * Wide::step, stride, T::even(from + lane * T::step, stride), T::odd(from + lane * T::step, stride));
    return reinterpret_cast<std::byte*>(wide);
}

template <class T>
static void attend_range(const RowsArgs& args, float* wide);
template <class T>
static void attend_wide(const RowsArgs& args, float* wide) {
    KeyTiles tiles = *args.tiles;
    for (int t = tiles.begin; t < tiles.end; ++t) {
        float *keys = wide + int64_t{t} * kKeyTile * args.dim, *values = keys + plane_floats(args.dim);
        tiles.keys[t] = widen_tile<T>(tiles.keys[t], kKeyTile, args.dim / 2, keys);
        tiles.values[t] = widen_tile<T>(tiles.values[t], args.dim, kKeyTile / 2, values);
    }
    attend_range<typename T::wide>({args.a, args.item, &tiles, nullptr, args.dim, args.slot}, nullptr);
}
#endif

// All rows of the item against one range; `wide` is memory of the item's.
template <class T>
static void attend_range(const RowsArgs& args, float* wide) {
    const int rows = args.item->rows;
    if constexpr (kScaled<T>) {
        attend_integers<T>(args, wide);
    } else {
        if constexpr (sizeof(typename T::element) < sizeof(typename T::wide::element))
            if (rows >= kWidenRows) return attend_wide<T>(args, wide);
        each_rows(rows, [&](auto count, int row) { attend_rows<T, decltype(count)::value>(args, row); });
    }
}

static void write_row(const AttentionArgs& a, const AttentionItem& item, const Slot& slot, int row, int dim) {
    const int group = group_of(a), head_dim = a.cache.head_dim, index = item.first_row + row;
    float* out = a.out + (a.query_start[item.seq] + index / group) * a.out_stride + int64_t{item.head * group + index % group} * head_dim;
    const float* o = slot.o + int64_t{row} * dim;
    // No finite score: the softmax of nothing.
    const vf factor = set1(slot.m[row] == kNothing ? __builtin_nanf("") : unit_of(a.cache.type) / slot.l[row]);
    for (int d = 0; d < head_dim; d += W) store_n(out + d, slot.m[row] == kNothing ? factor : mul(load(o + d), factor), head_dim - d);
}

// Scratch: for each thread its plan, the state of the item it is at, and a range widened or its queries as integers; then the slots of
// what is cut.
struct AttentionScratch {
    AttentionCut* cuts;
    float* state;
    float* wide;
    float* pool;
};
static inline int64_t cuts_bytes(int threads) { return (static_cast<int64_t>(sizeof(AttentionCut)) * (threads + 1) + 63) / 64 * 64; }
static inline int64_t thread_bytes(int threads, int dim) {
    return cuts_bytes(threads) + 4 * slot_floats(kItemRows, dim) + 4 * std::max(wide_floats(dim), integer_floats(dim)) +
           64;  // a line apart
}
static inline AttentionScratch scratch_of(const AttentionArgs& a, int thread, int threads) {
    std::byte* base = a.scratch + (-reinterpret_cast<uintptr_t>(a.scratch) & 63);
    const int64_t each = thread_bytes(threads, padded_dim(a.cache.head_dim));
    std::byte* own = base + thread * each;
    float* state = reinterpret_cast<float*>(own + cuts_bytes(threads));
    return {reinterpret_cast<AttentionCut*>(own), state, state + slot_floats(kItemRows, padded_dim(a.cache.head_dim)),
            reinterpret_cast<float*>(base + threads * each)};
}

static int64_t attention_scratch(int, int, int heads, int head_dim, int64_t max_seq_len, int threads) {
    const int dim = padded_dim(head_dim);
    return 64 + threads * thread_bytes(threads, dim) + 4 * pool_floats(heads, dim, max_seq_len);
}

static void attention(const AttentionArgs& a, int thread, int threads) {
    const AttentionScratch scratch = scratch_of(a, thread, threads);
    plan_attention(a, threads, scratch.cuts);
    const AttentionCut &from = scratch.cuts[thread], &to = scratch.cuts[thread + 1];
    const int dim = padded_dim(a.cache.head_dim);
    AttentionItem item{}, following{};
    KeyTiles tiles[2];
    KeyTiles *now = &tiles[0], *next = &tiles[1];
    bool more = settle(a, item, from.seq, from.head, from.tile) && starts_before(item, to), found = false;
    for (; more; item = following) {
        const bool resumed = from.inside && same_item(item, from), broken = to.inside && same_item(item, to);
        const int begin = resumed ? from.range : item.first_range(), end = broken ? to.range : item.end_range();
        more = settle(a, following, item.seq, item.head, item.tile + 1) && starts_before(following, to);
        if (begin >= end) return;  // both cuts lie here: the run is empty
        float* base = resumed ? scratch.pool + from.slot : scratch.state;
        Slot slot = slot_at(base, item.rows, dim);
        clear_slot(slot, item.rows, dim);
        if (!found) find_tiles(a, item, begin, *now);
        if (scaled(a.cache.type)) round_queries({&a, &item, nullptr, nullptr, dim, slot}, scratch.wide);
        for (int range = begin; range < end; ++range) {
            const bool last = range + 1 == end;
            found = !last || more;
            if (found) find_tiles(a, last ? following : item, last ? following.first_range() : range + 1, *next);
            const RowsArgs args{&a, &item, now, found ? next : nullptr, dim, slot};
            with_type(a.cache.type, [&](auto type) { attend_range<decltype(type)>(args, scratch.wide); });
            std::swap(now, next);
            if (resumed && !last) {
                base += slot_floats(item.rows, dim);
                slot = slot_at(base, item.rows, dim);
                clear_slot(slot, item.rows, dim);
            }
        }
        if (!resumed && !broken)
            for (int row = 0; row < item.rows; ++row) write_row(a, item, slot, row, dim);
    }
}

static void attention_merge(const AttentionArgs& a, int thread, int threads) {
    const AttentionScratch scratch = scratch_of(a, thread, threads);
    const int dim = padded_dim(a.cache.head_dim);
    for (int t = 1; t < threads;) {
        const AttentionCut& cut = scratch.cuts[t];
        if (!cut.inside) {
            ++t;
            continue;
        }
        // The state after the ranges before the first cut is where the thread before it left it.
        const AttentionItem item = item_at(a, cut.seq, cut.head, cut.tile);
        const Slot state = slot_at(scratch_of(a, t - 1, threads).state, item.rows, dim);
        const Range rows = share(item.rows, thread, threads);
        for (; t < threads && scratch.cuts[t].inside && same_item(item, scratch.cuts[t]); ++t) {
            const AttentionCut &from = scratch.cuts[t], &to = scratch.cuts[t + 1];
            const int end = to.inside && same_item(item, to) ? to.range : item.end_range();
            float* base = scratch.pool + from.slot;
            for (int range = from.range; range < end; ++range, base += slot_floats(item.rows, dim)) {
                const Slot slot = slot_at(base, item.rows, dim);
                const auto count = static_cast<int>(rows.end - rows.begin);
                Partials<kItemRows> part;
                for (int r = 0; r < count; ++r) part.m[r] = slot.m[rows.begin + r], part.l[r] = slot.l[rows.begin + r];
                merge_sums(state.m + rows.begin, state.l + rows.begin, part, count);
                for (int r = 0; r < count; ++r) {
                    const int64_t at = (rows.begin + r) * dim;
                    for (int d = 0; d < dim; d += W) merge_values(state.o + at + d, load(slot.o + at + d), part, r);
                }
            }
        }
        for (int64_t row = rows.begin; row < rows.end; ++row) write_row(a, item, state, static_cast<int>(row), dim);
    }
}

// Rounds one head of a row, then places it in its lane of the tile of keys and its row, or half a row of pairs, of the tile of values.
template <class T>
static void store_units(const StoreArgs& s, int64_t begin, int64_t end) {
    using element = typename T::element;
    const CacheLayer& cache = s.cache;
    const int size = cache.head_dim, dim = padded_dim(size), per_block = cache.block_size / kKeyTile;
    const int64_t bytes = tile_bytes(cache.type, size);
    element k[kMaxHeadDim + W], v[kMaxHeadDim + W];
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t row = unit / cache.kv_heads, head = unit % cache.kv_heads, slot = s.slot_mapping[row];
        if (slot < 0) continue;
        const int64_t from = row * s.stride + head * size;
        const float k_scale = round_head<T>(s.k + from, size, k), v_scale = round_head<T>(s.v + from, size, v);
        const int64_t block = slot / cache.block_size;
        const int offset = static_cast<int>(slot % cache.block_size), lane = offset % kKeyTile;
        const int64_t tile = ((block * cache.kv_heads + head) * per_block + offset / kKeyTile) * bytes;
        element* keys = reinterpret_cast<element*>(cache.keys + tile);
        element* values = reinterpret_cast<element*>(cache.values + tile);
        if constexpr (T::step == 1) {
            for (int d = 0; d < size; ++d) keys[d * kKeyTile + lane] = k[d];
            std::memcpy(values + lane * dim, v, sizeof(element) * static_cast<size_t>(size));
        } else {
            for (int d = 0; d < size; d += 2) std::memcpy(keys + d * kKeyTile + 2 * lane, k + d, 2 * sizeof(element));
            element* to = values + lane / 2 * 2 * dim + lane % 2;
            for (int d = 0; d < size; ++d) to[2 * d] = v[d];
        }
        if constexpr (kScaled<T>) {
            reinterpret_cast<float*>(keys + kKeyTile * dim)[lane] = k_scale;
            reinterpret_cast<float*>(values + kKeyTile * dim)[lane] = v_scale;
        }
    }
}

static void store(const StoreArgs& s, Range rows) {
    with_type(s.cache.type, [&](auto type) { store_units<decltype(type)>(s, rows.begin * s.cache.kv_heads, rows.end * s.cache.kv_heads); });
}

}  // namespace octavo::ISA
