// The keys and values of one cache group: every layer of it, in one lazily touched mapping.
#pragma once

#include <string>

#include "memory.h"
#include "ops.h"

namespace octavo {

// "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8" or "int16"; throws std::invalid_argument.
CacheType cache_type(const std::string& name);
const char* name_of(CacheType type);

class KVCache {
  public:
    // block_size a multiple of 16 up to 128, head_dim a multiple of 8 up to 256 (stored padded to a multiple of 16).
    // Who reads a block is not known before it is read: its pages come from `nodes` in turn, where there are any to choose from.
    KVCache(int num_layers, int64_t num_blocks, int block_size, int kv_heads, int head_dim, CacheType type,
            const std::vector<int>& nodes = {});

    int num_layers() const { return num_layers_; }
    int64_t num_blocks() const { return layout_.num_blocks; }
    int block_size() const { return layout_.block_size; }
    int kv_heads() const { return layout_.kv_heads; }
    int head_dim() const { return layout_.head_dim; }
    CacheType type() const { return layout_.type; }
    int64_t bytes() const { return memory_.bytes(); }

    CacheLayer layer(int index) const;

    // Bytes of a block over all layers, keys and values.
    static int64_t bytes_per_block(int num_layers, int block_size, int kv_heads, int head_dim, CacheType type);

    // Zero-fills blocks in all layers. Every thread of the pool calls it.
    void clear(const int32_t* ids, int count, int thread, int threads) const;
    // Copies up to kMostCopies blocks in all layers, all reads before any write: a block may be source and destination. Every thread of the
    // pool calls it.
    static constexpr int kMostCopies = 1 << 16;
    void copy(const int32_t* sources, const int32_t* destinations, int count, int thread, int threads) const;

    // One block as float32 [block_size, kv_heads, head_dim].
    void read_block(int layer, int64_t block, float* keys, float* values) const;

  private:
    std::byte* plane(int64_t index) const { return memory_.data() + index * plane_bytes_; }  // keys, values, keys of the next layer, ...

    CacheLayer layout_;  // pointers unset
    int num_layers_;
    int64_t block_bytes_;  // of one plane
    int64_t plane_bytes_;
    Memory memory_;
};

}  // namespace octavo
