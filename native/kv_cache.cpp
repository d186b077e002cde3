#include "kv_cache.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "plan.h"

namespace octavo {
namespace {

constexpr int kMost = 1 << 16;  // layers, and KV heads: their product is a size that cannot overflow

constexpr const char* kNames[] = {"f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int16"};

void check(bool fine, const std::string& what, int64_t value, const std::string& limit) {
    if (!fine) throw std::invalid_argument("A KV cache cannot have a " + what + " of " + std::to_string(value) + ": " + limit + ".");
}

}  // namespace

CacheType cache_type(const std::string& name) {
    std::string known;
    for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i) {
        if (name == kNames[i]) return static_cast<CacheType>(i);
        known += (i ? ", " : "") + std::string(kNames[i]);
    }
    throw std::invalid_argument("Unknown KV cache type '" + name + "'. There are: " + known + ".");
}

const char* name_of(CacheType type) { return kNames[static_cast<int>(type)]; }

int64_t KVCache::bytes_per_block(int num_layers, int block_size, int kv_heads, int head_dim, CacheType type) {
    check(num_layers > 0 && num_layers <= kMost, "layer count", num_layers, "it must be positive and at most 65536");
    check(kv_heads > 0 && kv_heads <= kMost, "KV head count", kv_heads, "it must be positive and at most 65536");
    check(block_size > 0 && block_size % kKeyTile == 0 && block_size <= 128, "block size", block_size,
          "it must be a multiple of 16 up to 128");
    check(head_dim > 0 && head_dim % 8 == 0 && head_dim <= kMaxHeadDim, "head size", head_dim, "it must be a multiple of 8 up to 256");
    return 2 * int64_t{num_layers} * kv_heads * (block_size / kKeyTile) * tile_bytes(type, head_dim);
}

KVCache::KVCache(int num_layers, int64_t num_blocks, int block_size, int kv_heads, int head_dim, CacheType type,
                 const std::vector<int>& nodes)
    : layout_{type, block_size, kv_heads, head_dim, num_blocks, nullptr, nullptr}, num_layers_(num_layers) {
    check(num_blocks > 0 && num_blocks <= INT32_MAX, "block count", num_blocks, "it must be positive and fit 31 bits");
    check(num_blocks <= INT64_MAX / bytes_per_block(num_layers, block_size, kv_heads, head_dim, type), "block count", num_blocks,
          "its bytes must fit 63 bits");
    block_bytes_ = bytes_per_block(1, block_size, kv_heads, head_dim, type) / 2;
    plane_bytes_ = block_bytes_ * num_blocks;
    memory_ = Memory(plane_bytes_ * 2 * num_layers);
    memory_.interleave(nodes);
}

CacheLayer KVCache::layer(int index) const {
    CacheLayer layer = layout_;
    layer.keys = plane(2 * int64_t{index});
    layer.values = plane(2 * int64_t{index} + 1);
    return layer;
}

void KVCache::clear(const int32_t* ids, int count, int thread, int threads) const {
    const int64_t units = 2 * int64_t{num_layers_} * count;
    for (int64_t unit = units * thread / threads; unit < units * (thread + 1) / threads; ++unit)
        std::memset(plane(unit / count) + ids[unit % count] * block_bytes_, 0, static_cast<size_t>(block_bytes_));
}

void KVCache::copy(const int32_t* sources, const int32_t* destinations, int count, int thread, int threads) const {
    if (count <= 0) return;
    // A slice of every source is read before that slice of any destination is written, so that threads need not wait for one another.
    // What is held meanwhile is on the stack, for a step allocates nothing: the more copies, the narrower the slice.
    std::byte held[kMostCopies];
    const int64_t slice = std::min<int64_t>(1024, kMostCopies / count);
    const int64_t slices = (block_bytes_ + slice - 1) / slice, units = 2 * int64_t{num_layers_} * slices;
    for (int64_t unit = units * thread / threads; unit < units * (thread + 1) / threads; ++unit) {
        std::byte* base = plane(unit / slices) + unit % slices * slice;
        const auto bytes = static_cast<size_t>(std::min(slice, block_bytes_ - unit % slices * slice));
        for (int i = 0; i < count; ++i) std::memcpy(held + i * slice, base + sources[i] * block_bytes_, bytes);
        for (int i = 0; i < count; ++i) std::memcpy(base + destinations[i] * block_bytes_, held + i * slice, bytes);
    }
}

void KVCache::read_block(int layer, int64_t block, float* keys, float* values) const {
    const CacheLayer cache = this->layer(layer);
    const int dim = padded_dim(cache.head_dim);
    const bool pairs = in_pairs(cache.type);
    auto value_at = [&](const std::byte* tile, int index, int lane) {
        switch (cache.type) {
            case CacheType::f32:
                return reinterpret_cast<const float*>(tile)[index];
            case CacheType::f16:
                return f16_to_f32(reinterpret_cast<const f16*>(tile)[index]);
            case CacheType::bf16:
                return bf16_to_f32(reinterpret_cast<const bf16*>(tile)[index]);
            case CacheType::e4m3:
                return e4m3_to_f32(static_cast<uint8_t>(tile[index]));
            case CacheType::e5m2:
                return e5m2_to_f32(static_cast<uint8_t>(tile[index]));
            case CacheType::i8:
            case CacheType::i16:
                break;
        }
        const float q = cache.type == CacheType::i16 ? static_cast<float>(reinterpret_cast<const int16_t*>(tile)[index])
                                                     : static_cast<float>(static_cast<int8_t>(tile[index]));
        return q * reinterpret_cast<const float*>(tile + int64_t{kKeyTile} * dim * element_bytes(cache.type))[lane];
    };
    for (int offset = 0; offset < cache.block_size; ++offset)
        for (int head = 0; head < cache.kv_heads; ++head) {
            const int lane = offset % kKeyTile;
            const int64_t tile = (block * cache.kv_heads + head) * (cache.block_size / kKeyTile) + offset / kKeyTile;
            const int64_t at = tile * tile_bytes(cache.type, cache.head_dim);
            for (int d = 0; d < cache.head_dim; ++d) {
                *keys++ = value_at(cache.keys + at, pairs ? (d / 2 * kKeyTile + lane) * 2 + d % 2 : d * kKeyTile + lane, lane);
                *values++ = value_at(cache.values + at, pairs ? (lane / 2 * dim + d) * 2 + lane % 2 : lane * dim + d, lane);
            }
        }
}

}  // namespace octavo
