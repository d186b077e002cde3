// Rows against one range whose keys and values are integers of 8 or 16 bits with a scale for each token: attend_rows() with exact products.
//
// A row's query becomes integers of up to 8191 with one scale, once for an item; its p, times the scales of the values, become such with
// one scale for a range. 64 products with up to 4095 have 31 bits, then their sum becomes float32 - wherever the tiles of a range begin
// and end, so that a row's bits hang on nothing else. What a dot product of pairs multiplies in one instruction takes two fused
// multiply-adds in float32, and has 12 bits where bf16 has 8.
namespace octavo::ISA {

constexpr int kLargestOperand = 8191;  // of q and p
constexpr int kExact = 64;             // products that a sum of 32 bits holds
static_assert(int64_t{kExact} * kLargestI16 * kLargestOperand <= INT32_MAX);
constexpr int kExactTiles = kExact / kKeyTile;

// The queries of an item: q [rows][kRange], their scales [rows].
struct IntegerQueries {
    int16_t* q;
    float* scales;
};
static inline IntegerQueries queries_in(float* memory) {
    return {reinterpret_cast<int16_t*>(memory), memory + int64_t{kItemRows} * kRange / 2};
}
// Behind them, a range of i8 as i16, where rows are many.
constexpr int64_t kQueryFloats = (int64_t{kItemRows} * (kRange / 2 + 1) + 15) / 16 * 16;
static inline int64_t plane_floats_i16(int dim) { return int64_t{kRange} * (dim / 2 + 1); }
static inline int64_t integer_floats(int dim) { return kQueryFloats + 2 * plane_floats_i16(dim); }
static void round_queries(const RowsArgs& args, float* memory) {
    const IntegerQueries to = queries_in(memory);
    float q[kMaxHeadDim];
    for (int row = 0; row < args.item->rows; ++row) {
        load_query(args, row, [&](int d, vf x) { ISA::store(q + d, x); });
        to.scales[row] = round_scaled<TypeI16, kLargestOperand>(q, args.dim, to.q + row * kRange);
    }
}

// The scores of R rows become p, and what meets the values: p times their scales, as integers in units of `unit`.
template <int R>
static inline void soften_integers(const RowsArgs& args, float* scores, const Seen* seen, int first, int last, int behind, int16_t* p,
                                   Partials<R>& part, float* unit) {
    const int from = first * kKeyTile, to = last * kKeyTile;
    const auto scales_at = [&](int i) __attribute__((always_inline)) {
        return load(reinterpret_cast<const float*>(args.tiles->values[i / kKeyTile] + behind) + i % kKeyTile);
    };
    vf spoiled = zero();  // max() passes over a scale that is NaN
    for (int i = from; i < to; i += W) spoiled = fma(scales_at(i), zero(), spoiled);
    const float nan_or_0 = reduce_add(spoiled);
    for (int r = 0; r < R; ++r) {
        float* s = scores + r * kRange;
        part.m[r] = mask_row(s, from, to, seen[r], args.a->softcap);
    }
    for (int r = 0; r < R; ++r) {
        float* s = scores + r * kRange;
        const vf shift = set1(part.m[r] == kNothing ? 0.0f : part.m[r]);
        vf sum = zero(), top = zero();
        for (int i = from; i < to; i += W) {
            const vf own = exp_to_one(sub(load(s + i), shift)), weight = mul(own, scales_at(i));
            ISA::store(s + i, weight);
            sum = add(sum, own);
            top = max(weight, top);
        }
        part.l[r] = reduce_add(sum);
        unit[r] = reduce_max(top);
    }
    for (int r = 0; r < R; ++r) {
        const float* s = scores + r * kRange;
        const Unit of(unit[r], kLargestOperand);
        for (int i = from; i < to; i += W) store_i16(p + r * kRange + i, nearest_low_bits(load(s + i), set1(of.inverse)));
        unit[r] = of.unit + nan_or_0;
    }
}

template <class T, int R>
static __attribute__((noinline)) void attend_integer_rows(const RowsArgs& args, const IntegerQueries& queries, int row) {
    using element = typename T::element;
    constexpr int N = slabs_of(R);
    constexpr int kPair = kPairBytes<T>;
    const KeyTiles& tiles = *args.tiles;
    const int dim = args.dim, behind = kKeyTile * dim * static_cast<int>(sizeof(element));
    const int16_t* q = queries.q + row * kRange;

    Seen seen[R];
    for (int r = 0; r < R; ++r) seen[r] = seen_by(args, row + r);
    const Range all = tiles_seen(seen, R);
    if (all.begin >= all.end) return;
    const int first = static_cast<int>(all.begin), last = static_cast<int>(all.end);
    alignas(64) float scores[R * kRange];
    alignas(64) int16_t p[R * kRange];

    // As in attend_rows(), the values of this range and then the keys that come next travel while the arithmetic of the first rows runs.
    const bool ahead = row == 0;
    auto score_tiles = [&](auto slabs, int t) __attribute__((always_inline)) {
        constexpr int S = decltype(slabs)::value;
        for (int d = 0; d < dim; d += kExact) {
            const element* keys[S];
            const std::byte* values[S];
            vi sum[R][S * kVectors];
#pragma GCC unroll kUnroll
            for (int n = 0; n < S; ++n)
                keys[n] = reinterpret_cast<const element*>(tiles.keys[t + n]) + d * kKeyTile,
                values[n] = tiles.values[t + n] + d / 2 * kPair;
#pragma GCC unroll kUnroll
            for (int r = 0; r < R; ++r)
#pragma GCC unroll kUnroll
                for (int c = 0; c < S * kVectors; ++c) sum[r][c] = zero_i();
            dot<T, R, S>(sum, q + d, keys, kKeyTile, (dim - d < kExact ? dim - d : kExact) / 2, ahead, values);
            const bool done = d + kExact >= dim;
#pragma GCC unroll kUnroll
            for (int c = 0; c < S * kVectors; ++c) {
                const vf scales = load(reinterpret_cast<const float*>(tiles.keys[t + c / kVectors] + behind) + c % kVectors * W);
#pragma GCC unroll kUnroll
                for (int r = 0; r < R; ++r) {
                    float* to = scores + r * kRange + t * kKeyTile + c * W;
                    vf s = to_f32(sum[r][c]);
                    if (d > 0) s = add(load(to), s);
                    ISA::store(to, done ? mul(s, mul(scales, set1(queries.scales[row + r]))) : s);
                }
            }
        }
        if (ahead)
            for (int n = 0; n < S; ++n) __builtin_prefetch(tiles.values[t + n] + behind);
    };
    int t = first;
    for (; t + N <= last; t += N) score_tiles(Constant<N>{}, t);
    for (; t < last; ++t) score_tiles(Constant<1>{}, t);

    Partials<R> part;
    float unit[R];
    soften_integers<R>(args, scores, seen, first, last, behind, p, part, unit);
    merge_sums(args.slot.m + row, args.slot.l + row, part);

    auto sum_values = [&](auto slabs, int slab) __attribute__((always_inline)) {
        constexpr int S = decltype(slabs)::value;
        alignas(64) float total[R * S * kKeyTile];
        for (int begin = first, end; begin < last; begin = end) {
            end = begin / kExactTiles * kExactTiles + kExactTiles < last ? begin / kExactTiles * kExactTiles + kExactTiles : last;
            vi sum[R][S * kVectors];
#pragma GCC unroll kUnroll
            for (int r = 0; r < R; ++r)
#pragma GCC unroll kUnroll
                for (int c = 0; c < S * kVectors; ++c) sum[r][c] = zero_i();
            for (int i = begin; i < end; ++i) {
                const int then = args.next ? args.next->begin + (i - first) : 0;
                const bool fetch = ahead && args.next && then < args.next->end;
                const element* values[S];
                const std::byte* keys[S];
#pragma GCC unroll kUnroll
                for (int n = 0; n < S; ++n) {
                    values[n] = reinterpret_cast<const element*>(tiles.values[i]) + (slab + n) * kKeyTile * 2;
                    keys[n] = fetch ? args.next->keys[then] + (slab + n) * kKeyTile / 2 * kPair : nullptr;
                }
                dot<T, R, S>(sum, p + i * kKeyTile, values, dim, kKeyTile / 2, fetch, keys);
            }
#pragma GCC unroll kUnroll
            for (int r = 0; r < R; ++r)
#pragma GCC unroll kUnroll
                for (int c = 0; c < S * kVectors; ++c) {
                    float* to = total + (r * S + c / kVectors) * kKeyTile + c % kVectors * W;
                    ISA::store(to, begin > first ? add(load(to), to_f32(sum[r][c])) : to_f32(sum[r][c]));
                }
        }
        for (int r = 0; r < R; ++r) {
            float* o = args.slot.o + int64_t{row + r} * dim + slab * kKeyTile;
            for (int c = 0; c < S * kKeyTile; c += W) merge_values(o + c, mul(load(total + r * S * kKeyTile + c), set1(unit[r])), part, r);
        }
    };
    const int slabs = dim / kKeyTile;
    int slab = 0;
    for (; slab + N <= slabs; slab += N) sum_values(Constant<N>{}, slab);
    for (; slab < slabs; ++slab) sum_values(Constant<1>{}, slab);
}

// A tile of pairs of i8, and the scales behind it, as i16.
static inline const std::byte* widen_tile(const std::byte* tile, int dim, float* wide) {
    const auto* from = reinterpret_cast<const int8_t*>(tile);
    auto* to = reinterpret_cast<int16_t*>(wide);
    for (int i = 0; i < kKeyTile * dim; i += 2 * W) store_i(reinterpret_cast<int32_t*>(to + i), widen_i8(from + i));
    std::memcpy(to + kKeyTile * dim, from + kKeyTile * dim, 4 * kKeyTile);
    return reinterpret_cast<const std::byte*>(wide);
}

template <class T>
static void attend_integers(const RowsArgs& args, float* memory) {
    const IntegerQueries queries = queries_in(memory);
    const int rows = args.item->rows, dim = args.dim;
    if constexpr (std::is_same_v<T, TypeI8>)
        if (rows >= kWidenRows) {
            KeyTiles tiles = *args.tiles;
            for (int t = tiles.begin; t < tiles.end; ++t) {
                float *keys = memory + kQueryFloats + int64_t{t} * kKeyTile * (dim / 2 + 1), *values = keys + plane_floats_i16(dim);
                tiles.keys[t] = widen_tile(tiles.keys[t], dim, keys);
                tiles.values[t] = widen_tile(tiles.values[t], dim, values);
            }
            return attend_integers<TypeI16>({args.a, args.item, &tiles, nullptr, dim, args.slot}, memory);
        }
    each_rows(rows, [&](auto count, int row) { attend_integer_rows<T, decltype(count)::value>(args, queries, row); });
}

}  // namespace octavo::ISA
