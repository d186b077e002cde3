// Many rows against a range, where the level has multiply_rows(): what attend_rows() computes, to the bit.
//
// As many tiles of keys as fit the nearest cache are widened to float32, exactly, and meet all rows of the item; then, after the softmax
// of all rows, the values of one slab of dimensions after the other do.
namespace octavo::ISA {

static_assert(kMaxHeadDim <= kRange, "a slab holds at least one tile");
constexpr int kWideFloats = kRange * kKeyTile;  // 16 KiB: a slab of values, or tiles of keys

// Of what is widened, the scores and the queries.
static inline int64_t wide_floats(int dim) { return kWideFloats + int64_t{kItemRows} * (kRange + dim); }

// sums [rows][kPitch] = a [rows][a_stride] . b [count][16], rows being 1 to 6.
template <int kPitch>
static inline void multiply_slab(int rows, const float* b, const float* a, int a_stride, int64_t count, float* sums) {
    static constexpr decltype(&multiply_rows<1, kPitch, true>) multiply[] = {
        multiply_rows<1, kPitch, true>, multiply_rows<2, kPitch, true>, multiply_rows<3, kPitch, true>,
        multiply_rows<4, kPitch, true>, multiply_rows<5, kPitch, true>, multiply_rows<6, kPitch, true>};
    const auto* w = reinterpret_cast<const std::byte*>(b);
    multiply[rows - 1](w, reinterpret_cast<const std::byte*>(a), 4 * int64_t{a_stride}, count, sums, w, 0);
}

// 2 * pairs dimensions, or tokens, of a tile: 16 of its `stride` lanes, as [2 * pairs][16].
template <class T>
static inline void widen(const std::byte* tile, int lane, int64_t stride, int pairs, float* out) {
    const auto* from = reinterpret_cast<const typename T::element*>(tile) + lane * T::step;
    for (int i = 0; i < pairs; ++i, from += 2 * stride, out += 2 * kKeyTile)
        for (int c = 0; c < kKeyTile; c += W) {
            ISA::store(out + c, T::even(from + c * T::step, stride));
            ISA::store(out + kKeyTile + c, T::odd(from + c * T::step, stride));
        }
}

template <class T>
static __attribute__((noinline)) void attend_wide(const RowsArgs& args, float* wide) {
    constexpr int R = 6;
    const KeyTiles& tiles = *args.tiles;
    const int dim = args.dim, rows = args.item->rows;
    float *scores = wide + kWideFloats, *queries = scores + kItemRows * kRange;
    Seen seen[kItemRows];
    Range sees[kItemRows / R];  // of each R rows
    for (int row = 0; row < rows; ++row) {
        seen[row] = seen_by(args, row);
        load_query(args, row, [&](int d, vf x) { ISA::store(queries + row * dim + d, x); });
    }
    const auto rows_at = [&](int row) { return rows - row < R ? rows - row : R; };
    for (int row = 0; row < rows; row += R) sees[row / R] = tiles_seen(seen + row, rows_at(row));

    for (int begin = tiles.begin, end; begin < tiles.end; begin = end) {
        end = begin + kRange / dim < tiles.end ? begin + kRange / dim : tiles.end;
        for (int t = begin; t < end; ++t) widen<T>(tiles.keys[t], 0, kKeyTile, dim / 2, wide + (t - begin) * kKeyTile * dim);
        for (int row = 0; row < rows; row += R)
            for (int t = begin; t < end; ++t)
                if (t >= sees[row / R].begin && t < sees[row / R].end)
                    multiply_slab<kRange>(rows_at(row), wide + (t - begin) * kKeyTile * dim, queries + row * dim, dim, dim,
                                          scores + row * kRange + t * kKeyTile);
    }

    Partials<kItemRows> part;
    for (int row = 0; row < rows; ++row) {
        const Range of = sees[row / R];
        part.m[row] = kNothing, part.l[row] = 0.0f;
        if (of.begin >= of.end) continue;
        softmax_row(scores + row * kRange, static_cast<int>(of.begin) * kKeyTile, static_cast<int>(of.end) * kKeyTile, seen[row],
                    args.a->softcap, part.m[row], part.l[row]);
    }
    merge_sums(args.slot.m, args.slot.l, part, rows);

    for (int slab = 0; slab < dim; slab += kKeyTile) {
        for (int t = tiles.begin; t < tiles.end; ++t) widen<T>(tiles.values[t], slab, dim, kKeyTile / 2, wide + t * kKeyTile * kKeyTile);
        for (int row = 0; row < rows; row += R) {
            const Range of = sees[row / R];
            if (of.begin >= of.end) continue;
            const int64_t first = of.begin * kKeyTile, count = (of.end - of.begin) * kKeyTile;
            alignas(32) float sums[R * kKeyTile];
            multiply_slab<kKeyTile>(rows_at(row), wide + first * kKeyTile, scores + row * kRange + first, kRange, count, sums);
            for (int r = 0; r < rows_at(row); ++r)
                for (int c = 0; c < kKeyTile; c += W)  // as in attend_rows()
                    merge_values(args.slot.o + int64_t{row + r} * dim + slab + c, add(load(sums + r * kKeyTile + c), zero()), part,
                                 row + r);
        }
    }
}

}  // namespace octavo::ISA
