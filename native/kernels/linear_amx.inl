// Linear layers on AMX: what takes the place of panel_sums() for bf16 and for i8s. Panels are packed as for AVX-512: 16 columns of 16
// steps of pairs, or of quads, are a right operand as they lie.
//
// A product of tiles takes 16 rows of activations times 16 columns, and 64 bytes of K. All rows of a panel's width of sums are four tiles:
// of eight, one is left for activations and two for weights. The first operand has as many rows as there are; each row of a product is
// computed alone, so that their number does not show in the bits.
//
// bf16: the level's definition is that of tdpbf16ps. For every 32 values of K, from the first on, the products of the even ones are added
// up from zero with one rounding each, those of the odd ones likewise, and then both sums, to each other and to the output's; subnormals
// count as zero. Fewer values are left at the end of K, and a tile is as short as they are.
//
// i8s: a span is one product, of integers, and the rest is as in SpanTile, to the bit. A few rows take SpanTile: what they wait for is
// memory. The other formats keep to it altogether, as activations have a scale for 16 values: a product of tiles would then be a quarter
// full, and what takes the time is the visit to the float32 sums behind it.
#include <utility>

namespace octavo::ISA {
namespace {

constexpr int kTileRows = 16, kTileColumns = 16, kTileBytes = 64;
constexpr int kColumnTiles = kPanel / kTileColumns;
constexpr int64_t kStepStride = 4 * kPanel;              // of pairs or quads of a panel
constexpr int kLeft = kColumnTiles, kRight = 1 + kLeft;  // registers; sums come first, and there are two for weights
using ColumnTiles = std::make_integer_sequence<int, kColumnTiles>;

// The shape of this thread's tiles.
class TileShape {
  public:
    ~TileShape() { tile_release(); }
    // For `rows` of sums, and `bytes` of K in each row of activations.
    void set(int rows, int bytes) {
        if (rows == rows_ && bytes == bytes_) return;
        rows_ = rows, bytes_ = bytes;
        TileConfig config;
        auto shape = [&](int tile, int tile_rows, int row_bytes) {
            config.rows[tile] = static_cast<uint8_t>(tile_rows);
            config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
        };
        for (int tile = 0; tile < kColumnTiles; ++tile) shape(tile, rows, 4 * kTileColumns);
        shape(kLeft, rows, bytes);
        shape(kRight, bytes / 4, kTileBytes);
        shape(kRight + 1, bytes / 4, kTileBytes);
        tile_config(config);
    }

  private:
    int rows_ = 0, bytes_ = 0;
};

// Sums of up to 16 rows += `steps` products of `bytes` of K each.
template <int... V>
static inline void add_bf16(const std::byte* w, const std::byte* x, int64_t x_stride, int64_t steps, int bytes, float* sums, bool first,
                            std::integer_sequence<int, V...>) {
    if (first)
        (tile_zero<V>(), ...);
    else
        (tile_load<V>(sums + V * kTileColumns, kStepStride), ...);
    for (int64_t step = 0; step < steps; ++step, x += bytes, w += bytes / 4 * kStepStride) {
        tile_load<kLeft>(x, x_stride);
        ((tile_load<kRight + V % 2>(w + V * kTileBytes, kStepStride), tile_dot_bf16<V, kLeft, kRight + V % 2>()), ...);
    }
    (tile_store<V>(sums + V * kTileColumns, kStepStride), ...);
}

template <>
void panel_sums<FloatTile<Bf16Weights>>(const PackedWeight& weight, int64_t panel, const std::byte* x, int64_t x_stride, int rows,
                                        float* sums) {
    constexpr int64_t kTilePairs = kTileBytes / 4, kBlock = kBlockBytes / kStepStride / kTilePairs * kTilePairs;
    const std::byte* w = weight.data + panel * weight.panel_bytes;
    const int64_t pairs = steps_of(weight), whole = pairs / kTilePairs * kTilePairs;
    TileShape shape;
    for (int64_t pair = 0, count; pair < pairs; pair += count) {  // blocks of whole tiles, and then a short tile
        const int64_t left = (pair < whole ? whole : pairs) - pair;
        count = left < kBlock ? left : kBlock;
        const int bytes = pair < whole ? kTileBytes : static_cast<int>(4 * left);
        for (int row = 0; row < rows; row += kTileRows) {
            shape.set(rows - row < kTileRows ? rows - row : kTileRows, bytes);
            add_bf16(w + pair * kStepStride, x + row * x_stride + 4 * pair, x_stride, 4 * count / bytes, bytes, sums + row * kPanel,
                     pair == 0, ColumnTiles());
        }
    }
}

template <int... V>
static inline void span_dots(const std::byte* quads, const std::byte* x, int64_t x_stride, int32_t* dots,
                             std::integer_sequence<int, V...>) {
    tile_load<kLeft>(x, x_stride);
    ((tile_zero<V>(), tile_load<kRight + V % 2>(quads + V * kTileBytes, kStepStride), tile_dot_s8u8<V, kLeft, kRight + V % 2>(),
      tile_store<V>(dots + V * kTileColumns, kStepStride)),
     ...);
}

// Sums of up to 16 rows += the products of one span.
static inline void add_span(const std::byte* w, const std::byte* x, int64_t x_stride, int rows, float* sums, bool first) {
    alignas(64) int32_t dots[kTileRows * kPanel];
    const float* scales = reinterpret_cast<const float*>(w);
    span_dots(w + 4 * kPanel, x, x_stride, dots, ColumnTiles());
    for (int r = 0; r < rows; ++r) {
        ActSpan act;
        std::memcpy(&act, x + r * x_stride + SpanTile::kActValues, sizeof act);
        const vi offset = set1_i(act.offset);
        const vf act_scale = set1(act.scale);
        for (int i = 0; i < kPanel; i += W) {
            float* sum = sums + r * kPanel + i;
            const vf dot = to_f32(add_i(load_i(dots + r * kPanel + i), offset)), before = first ? zero() : load(sum);
            store(sum, fma(load(scales + i), mul(act_scale, dot), before));
        }
    }
}

template <>
void panel_sums<SpanTile>(const PackedWeight& weight, int64_t panel, const std::byte* x, int64_t x_stride, int rows, float* sums) {
    constexpr int64_t kBlock = kBlockBytes / SpanTile::kStepBytes + 1;
    const std::byte* w = weight.data + panel * weight.panel_bytes;
    const int64_t spans = steps_of(weight);
    if (rows <= SpanTile::kRows) return run_tile<SpanTile>(rows, {w, x, x_stride, spans, sums, true, weight.zero});
    TileShape shape;
    for (int64_t block = 0; block < spans; block += kBlock)
        for (int row = 0; row < rows; row += kTileRows) {
            const int height = rows - row < kTileRows ? rows - row : kTileRows;
            shape.set(height, kTileBytes);
            for (int64_t span = block; span < spans && span < block + kBlock; ++span)
                add_span(w + span * SpanTile::kStepBytes, x + row * x_stride + span * SpanTile::kActStep, x_stride, height,
                         sums + row * kPanel, span == 0);
        }
}

}  // namespace
}  // namespace octavo::ISA
