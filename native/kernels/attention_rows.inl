// Paged attention, one text for prefill and decode: rows (one query head of one token each) against tiles of 16 cached tokens.
//
// Law: a row's keys are cut at multiples of kRange. Each cut gives a fresh partial - m the largest score, l the sum of p = exp(score - m),
// o the sum of p * value - and partials merge in ascending order; one that sees no key changes nothing. Every sum of a row runs in its own
// lane or chain, over its keys or dimensions in order; what a tile holds beside them (masked tokens, padding) adds +0. So the bits of a row
// depend on its own query and keys only: not on the rows beside it, the tile sizes below, the blocks, or who computes which partial.
//
// Both products are one loop, dot(): scores = q . keys with lanes of tokens, o = p . values with lanes of dimensions. Where the ISA
// multiplies pairs of bf16, q and p are rounded to bf16 (and l sums the rounded p); everywhere else they stay float32 against widened keys
// and values. Integers with scales are attention_integers.inl's.
#include "attention_types.inl"

namespace octavo::ISA {

constexpr int kVectors = kKeyTile / W;  // vectors of a slab: 16 lanes
constexpr float kNothing = -__builtin_inff();

// Slabs that run together with 1 .. 6 rows. Of 16 registers of 8 lanes, 6 rows x 1 slab take 12 accumulators, 2 vectors of keys and a
// broadcast; of 32 of 16 lanes 6 x 4, and of 32 of 4 lanes 6 x 1, take 24, 4 and 1. Fewer rows take more slabs, so that 8 chains or more
// hide the latency of fma. Plain C++ gains nothing from either.
constexpr int slabs_of(int rows) {
    const int most = kSumRegisters / (rows * kVectors);
    return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}
constexpr int kUnroll = kSumRegisters > 0 ? 16 : 1;

// Bytes of a pair of keys' dimensions, or of values' tokens, over the lanes of a slab.
template <class T>
constexpr int kPairBytes = 2 * kKeyTile * static_cast<int>(sizeof(typename T::element));

// sum[r][slab] += a[r] . b[slab] over 2 * pairs values: a is [R][kRange] (q, or p), b[slab] points at [pairs][stride][2] or [2 *
// pairs][stride]. With `fetch`, as many lines as it reads of b[slab] come nearer from ahead[slab] on, one at a time: a burst would fill the
// miss buffers and stall.
template <class T, int R, int N, class Sum>
static inline __attribute__((always_inline)) void dot(Sum (&sum)[R][N * kVectors], const typename T::operand* a,
                                                      const typename T::element* const (&b)[N], int64_t stride, int pairs, bool fetch,
                                                      const std::byte* const (&ahead)[N]) {
    for (int i = 0; i < pairs; ++i, a += 2) {
        const int64_t at = 2 * i * stride;
        if (fetch)
#pragma GCC unroll kUnroll
            for (int n = 0; n < N; ++n)
                for (int line = 0; line < kPairBytes<T>; line += 64) __builtin_prefetch(ahead[n] + kPairBytes<T> * i + line);
        if constexpr (T::paired) {
            typename T::pair right[N * kVectors];
#pragma GCC unroll kUnroll
            for (int c = 0; c < N * kVectors; ++c) right[c] = T::pairs(b[c / kVectors] + at + c % kVectors * W * T::step, stride);
#pragma GCC unroll kUnroll
            for (int r = 0; r < R; ++r) {
                const typename T::pair left = broadcast_pair(a + r * kRange);
#pragma GCC unroll kUnroll
                for (int c = 0; c < N * kVectors; ++c) sum[r][c] = dot_pairs(sum[r][c], right[c], left);
            }
        } else {
#pragma GCC unroll kUnroll
            for (int half = 0; half < 2; ++half) {
                if constexpr ((R + 1) * N * kVectors >= kSumRegisters * 4 / 3) {  // no registers for all of the right beside the sums
                    vf left[R];
#pragma GCC unroll kUnroll
                    for (int r = 0; r < R; ++r) left[r] = set1(a[r * kRange + half]);
#pragma GCC unroll kUnroll
                    for (int c = 0; c < N * kVectors; ++c) {
                        const auto* p = b[c / kVectors] + at + c % kVectors * W * T::step;
                        const vf right = half ? T::odd(p, stride) : T::even(p, stride);
#pragma GCC unroll kUnroll
                        for (int r = 0; r < R; ++r) sum[r][c] = fma(left[r], right, sum[r][c]);
                    }
                } else {
                    vf right[N * kVectors];
#pragma GCC unroll kUnroll
                    for (int c = 0; c < N * kVectors; ++c) {
                        const auto* p = b[c / kVectors] + at + c % kVectors * W * T::step;
                        right[c] = half ? T::odd(p, stride) : T::even(p, stride);
                    }
#pragma GCC unroll kUnroll
                    for (int r = 0; r < R; ++r) {
                        const vf left = set1(a[r * kRange + half]);
#pragma GCC unroll kUnroll
                        for (int c = 0; c < N * kVectors; ++c) sum[r][c] = fma(left, right[c], sum[r][c]);
                    }
                }
            }
        }
    }
}

// The tiles [begin, end) of one range that some row of the item sees.
struct KeyTiles {
    int base;  // position of the range's first key
    int begin, end;
    const std::byte* keys[kRange / kKeyTile];
    const std::byte* values[kRange / kKeyTile];
};

struct Slot {
    float *o, *m, *l;  // [rows, dim], [rows], [rows]
};
static inline Slot slot_at(float* base, int rows, int dim) { return {base, base + int64_t{rows} * dim, base + int64_t{rows} * dim + rows}; }
static inline void clear_slot(const Slot& slot, int rows, int dim) {
    for (int i = 0; i < rows * dim; i += W) ISA::store(slot.o + i, zero());
    for (int r = 0; r < rows; ++r) slot.m[r] = kNothing, slot.l[r] = 0.0f;
}

// Rows' (m, l) of one range, and how they join their states: the factors of both, for merge_values(). A factor is 0 where there is nothing.
template <int R>
struct Partials {
    static constexpr int size = (R + W - 1) / W * W;
    float m[size], l[size], old[size], fresh[size];
};
template <int R>
static inline void merge_sums(float* m, float* l, Partials<R>& part, int rows = R) {
    for (int i = 0; i < rows; i += W) {
        const vf state = load_n(m + i, rows - i), fresh = load_n(part.m + i, rows - i), top = max(state, fresh);
        const vf from = select_lt(set1(kNothing), top, top, zero());
        const vf old = exp_to_one(sub(state, from)), now = exp_to_one(sub(fresh, from));
        ISA::store(part.old + i, old), ISA::store(part.fresh + i, now);
        store_n(l + i, fma(load_n(l + i, rows - i), old, mul(load_n(part.l + i, rows - i), now)), rows - i);
        store_n(m + i, top, rows - i);
    }
}
template <int R>
static inline void merge_values(float* o, vf fresh, const Partials<R>& part, int row) {
    if (part.m[row] == kNothing) return;  // where no key is seen, what lies there may be no number
    ISA::store(o, fma(load(o), set1(part.old[row]), mul(fresh, set1(part.fresh[row]))));
}

// The keys of the range that a row of the item sees; none where it ends before it begins.
struct Seen {
    int begin, end;
};
// The largest of the scores [from, to) of a row, once capped; those that it does not see become -infinity. `to - from` is a multiple of 16.
static inline float mask_row(float* s, int from, int to, Seen seen, float softcap) {
    if (softcap > 0.0f)
        for (int i = from; i < to; i += W) ISA::store(s + i, mul(set1(softcap), tanh(load(s + i))));
    const bool sees = seen.begin < seen.end;
    for (int i = from; i < (sees ? seen.begin : to); ++i) s[i] = kNothing;
    for (int i = sees ? seen.end : to; i < to; ++i) s[i] = kNothing;
    vf top[2] = {set1(kNothing), set1(kNothing)};
    constexpr int kSecond = kVectors > 1 ? W : 0;
    for (int i = from; i < to; i += W + kSecond) {
        top[0] = max(top[0], load(s + i));
        top[1] = max(top[1], load(s + i + kSecond));
    }
    return reduce_max(max(top[0], top[1]));
}
// Scores of one row become p, in place; those that it does not see become exactly 0.
static inline void softmax_row(float* s, int from, int to, Seen seen, float softcap, float& m, float& l) {
    m = mask_row(s, from, to, seen, softcap);
    const vf shift = set1(m == kNothing ? 0.0f : m);
    vf sum = zero();
    for (int i = from; i < to; i += W) {
        const vf p = exp_to_one(sub(load(s + i), shift));
        ISA::store(s + i, p);
        sum = add(sum, p);
    }
    l = reduce_add(sum);
}

// What the rows of an item share while they meet one range.
struct RowsArgs {
    const AttentionArgs* a;
    const AttentionItem* item;
    const KeyTiles* tiles;
    const KeyTiles* next;  // what this thread reads after it, of this item or the next; none where nothing follows or rows are many
    int dim;
    Slot slot;
};

static inline Seen seen_by(const RowsArgs& args, int row) {
    const AttentionArgs& a = *args.a;
    const int seq = args.item->seq, token = (args.item->first_row + row) / group_of(a),
              position = a.seq_lens[seq] - tokens_of(a, seq) + token;
    const int begin = keys_begin(a, position) - args.tiles->base, end = keys_end(position) - args.tiles->base;
    return {begin < 0 ? 0 : begin, end > kRange ? kRange : end};
}
// The tiles that some of `rows` rows see.
static inline Range tiles_seen(const Seen* seen, int rows) {
    int begin = kRange, end = 0;
    for (int r = 0; r < rows; ++r) {
        if (seen[r].begin >= seen[r].end) continue;
        begin = seen[r].begin < begin ? seen[r].begin : begin;
        end = seen[r].end > end ? seen[r].end : end;
    }
    return {begin / kKeyTile, begin < end ? (end + kKeyTile - 1) / kKeyTile : begin / kKeyTile};
}

// A row's query, scaled, `write(d, q)` for each W of its dimensions.
template <class Write>
static inline void load_query(const RowsArgs& args, int row, Write write) {
    const AttentionArgs& a = *args.a;
    const int index = args.item->first_row + row, group = group_of(a), token = index / group, head_dim = a.cache.head_dim;
    const vf scale = set1((a.softcap > 0.0f ? a.scale / a.softcap : a.scale) * unit_of(a.cache.type));
    const float* from =
        a.q + (a.query_start[args.item->seq] + token) * a.q_stride + int64_t{args.item->head * group + index % group} * head_dim;
    for (int d = 0; d < args.dim; d += W) write(d, mul(load_n(from + d, head_dim - d), scale));
}

// Rows from which on a range is widened once, before its use, rather than by each six rows again. The same bits: widening is exact.
constexpr int kWidenRows = 13;
// attend(Constant<R>, first of R rows), R being at most 6, for all of them.
template <class Attend>
static inline void each_rows(int rows, Attend attend) {
    int row = 0;
    for (; row + 6 <= rows; row += 6) attend(Constant<6>{}, row);
    switch (rows - row) {
        case 5:
            attend(Constant<3>{}, row), attend(Constant<2>{}, row + 3);
            break;
        case 4:
            attend(Constant<4>{}, row);
            break;
        case 3:
            attend(Constant<3>{}, row);
            break;
        case 2:
            attend(Constant<2>{}, row);
            break;
        case 1:
            attend(Constant<1>{}, row);
            break;
        default:
            break;
    }
}

// Rows [row, row + R) of the item against one range: scores, p, o, merged into the slot.
template <class T, int R>
static __attribute__((noinline)) void attend_rows(const RowsArgs& args, int row) {
    using element = typename T::element;
    using operand = typename T::operand;
    constexpr int N = slabs_of(R);
    const KeyTiles& tiles = *args.tiles;
    const int dim = args.dim;

    alignas(64) operand q[R * kRange];
    alignas(64) float scores[R * kRange];
    Seen seen[R];
    for (int r = 0; r < R; ++r) {
        seen[r] = seen_by(args, row + r);
        load_query(args, row + r, [&](int d, vf x) {
            if constexpr (T::paired)
                store_bf16(reinterpret_cast<bf16*>(q) + r * kRange + d, x);
            else
                ISA::store(reinterpret_cast<float*>(q) + r * kRange + d, x);
        });
    }
    const Range all = tiles_seen(seen, R);
    if (all.begin >= all.end) return;
    const int first = static_cast<int>(all.begin), last = static_cast<int>(all.end);

    // The values of this range, and later the keys that come next, travel while the arithmetic of the first rows runs.
    const bool ahead = row == 0;
    auto score_tiles = [&](auto slabs, int t) __attribute__((always_inline)) {
        constexpr int S = decltype(slabs)::value;
        const std::byte* values[S];
        const element* keys[S];
        vf sum[R][S * kVectors];
#pragma GCC unroll kUnroll
        for (int n = 0; n < S; ++n) keys[n] = reinterpret_cast<const element*>(tiles.keys[t + n]), values[n] = tiles.values[t + n];
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r)
#pragma GCC unroll kUnroll
            for (int c = 0; c < S * kVectors; ++c) sum[r][c] = zero();
        dot<T, R, S>(sum, q, keys, kKeyTile, dim / 2, ahead, values);
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r)
#pragma GCC unroll kUnroll
            for (int c = 0; c < S * kVectors; ++c) ISA::store(scores + r * kRange + t * kKeyTile + c * W, sum[r][c]);
    };
    int t = first;
    for (; t + N <= last; t += N) score_tiles(Constant<N>{}, t);
    for (; t < last; ++t) score_tiles(Constant<1>{}, t);

    Partials<R> part;
#if OCTAVO_PAIRED_BF16
    alignas(64) bf16 rounded[T::paired ? R * kRange : 1];
#endif
    for (int r = 0; r < R; ++r) {
        softmax_row(scores + r * kRange, first * kKeyTile, last * kKeyTile, seen[r], args.a->softcap, part.m[r], part.l[r]);
#if OCTAVO_PAIRED_BF16
        if constexpr (T::paired) {
            vf sum = zero();
            for (int i = first * kKeyTile; i < last * kKeyTile; i += W) {
                bf16* to = rounded + r * kRange + i;
                store_bf16(to, load(scores + r * kRange + i));
                sum = add(sum, load_bf16(to));
            }
            part.l[r] = reduce_add(sum);
        }
#endif
    }
    merge_sums(args.slot.m + row, args.slot.l + row, part);
    const operand* p;
#if OCTAVO_PAIRED_BF16
    if constexpr (T::paired)
        p = rounded;
    else
#endif
        p = reinterpret_cast<const operand*>(scores);

    auto sum_values = [&](auto slabs, int slab) __attribute__((always_inline)) {
        constexpr int S = decltype(slabs)::value;
        vf sum[R][S * kVectors];
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r)
#pragma GCC unroll kUnroll
            for (int c = 0; c < S * kVectors; ++c) sum[r][c] = zero();
        for (int i = first; i < last; ++i) {
            // A tile for a tile: of a longer range the rest is not fetched.
            const int then = args.next ? args.next->begin + (i - first) : 0;
            const bool fetch = ahead && args.next && then < args.next->end;
            const element* values[S];
            const std::byte* keys[S];
#pragma GCC unroll kUnroll
            for (int n = 0; n < S; ++n) {
                values[n] = reinterpret_cast<const element*>(tiles.values[i]) + (slab + n) * kKeyTile * T::step;
                keys[n] = fetch ? args.next->keys[then] + (slab + n) * kKeyTile / 2 * kPairBytes<T> : nullptr;
            }
            dot<T, R, S>(sum, p + i * kKeyTile, values, dim, kKeyTile / 2, fetch, keys);
        }
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r) {
            float* o = args.slot.o + int64_t{row + r} * dim + slab * kKeyTile;
            // An underflow may leave -0, which a masked lane would have turned into +0.
#pragma GCC unroll kUnroll
            for (int c = 0; c < S * kVectors; ++c) merge_values(o + c * W, add(sum[r][c], zero()), part, r);
        }
    };
    const int slabs = dim / kKeyTile;
    int slab = 0;
    for (; slab + N <= slabs; slab += N) sum_values(Constant<N>{}, slab);
    for (; slab < slabs; ++slab) sum_values(Constant<1>{}, slab);
}

}  // namespace octavo::ISA
