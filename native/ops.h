// The seam between the Program and the kernels: argument structs with shapes, and one table of functions per ISA.
//
// Most kernels treat rows one by one, and are called for a range of rows. The others are called once for each `thread` of `threads`, the
// number of a share, by whichever thread of the pool takes it. What a share is may depend on `threads`; what is computed never does.
#pragma once

#include "types.h"

namespace octavo {

struct Range {
    int64_t begin, end;
};
// The part of `count` units that `thread` of `threads` takes.
static inline Range share(int64_t count, int thread, int threads) { return {count * thread / threads, count * (thread + 1) / threads}; }

// How a weight is packed. Integer weights are w = scale * q + minimum with unsigned q; `zero` folds a constant minimum of -zero * scale.
// i8s has 8 bits and a scale per span of 64, as its activations have.
enum class Format : uint8_t { f32, f16, bf16, i2, i3, i4, i5, i6, i8, i8s };

// How an activation row is prepared for a weight format; the layout is the ISA's own. q8, q8h, q8w: 8-bit integers with a scale per 16,
// of which a level may want other orders for groups of 16 (q8h) and for weights of 8 bits (q8w); s8: with a scale per span of 64.
enum class Act : uint8_t { f32, bf16, q8, q8h, q8w, s8 };
constexpr size_t kActs = static_cast<size_t>(Act::s8) + 1;

// A weight [n, k] after pack(): column panels, K grouped by the dot width. Only pack() and the linear kernels know the layout of `data`.
struct PackedWeight {
    Format format;
    int32_t n, k;
    int32_t group;        // K values that share a scale; 0 for floating point formats and i8s
    int32_t super_group;  // K values whose scales are f16 times an integer of 8 bits; 0: each scale is an f16 of its own
    int32_t zero;         // constant zero point, where there are no minima; of i4 it is 8
    bool has_minimum;     // a minimum stands beside every scale
    int32_t panel;        // columns of a panel
    int64_t panel_bytes;  // distance between panels
    int64_t bytes;
    std::byte* data;
};

struct QuantizeArgs {  // x [rows, k] -> out, rows of act_bytes(act, k) bytes
    Act act;
    const float* x;
    int64_t x_stride;
    int k;
    std::byte* out;
};

struct LinearArgs {  // out [rows, n] = x [rows, k] . w^T + bias, or += with `accumulate`
    const PackedWeight* weight;
    const std::byte* x;  // prepared as act_of(weight->format)
    int rows;
    const float* bias;  // [n] or null
    float* out;
    int64_t out_stride;
    bool accumulate;
};

enum class Activation : uint8_t { silu, gelu, gelu_tanh, relu };

struct GatedArgs {  // out [rows, n] = activation(x . gate^T + gate_bias) * (x . up^T + up_bias), prepared as `form`
    Activation kind;
    const PackedWeight *gate, *up;
    const std::byte *gate_x, *up_x;    // prepared as act_of(gate->format), act_of(up->format)
    const float *gate_bias, *up_bias;  // [n] or null
    int rows;
    Act form;
    std::byte* out;  // rows of act_bytes(form, n) bytes
};

struct EmbedArgs {  // out [rows, k] = dequantised rows `ids` of weight [n, k], times scale
    const PackedWeight* weight;
    const int32_t* ids;
    float scale;
    float* out;
    int64_t out_stride;
};

struct NormArgs {  // every group of `size` values of x [rows, groups * size] is normalised by its root mean square
    const float* x;
    int64_t x_stride;
    const float* weight;  // [size]
    float epsilon, offset;
    int groups, size;
    float* out;
    int64_t out_stride;
};

struct RopeAnglesArgs {  // out [rows, 2 * half]: cosines, then sines, of position * inv_freq, times scale
    const int32_t* positions;
    const double* inv_freq;
    double scale;
    int half;
    float* out;
};

struct RopeArgs {         // rotates the first 2 * half values of every head of x [rows, heads * head_dim] in place
    const float* angles;  // [rows, 2 * half]
    float* x;
    int64_t x_stride;
    int heads, head_dim, half;
    bool interleaved;
};

struct ActivationArgs {  // out = activation(gate) * up, or activation(gate) where up is null; [rows, size]
    Activation kind;
    const float* gate;
    const float* up;
    int64_t gate_stride, up_stride;
    int size;
    float* out;
    int64_t out_stride;
};

struct AddArgs {  // out = a + b; [rows, size]; b null: out = a * factor
    const float* a;
    const float* b;
    float factor;
    int64_t stride;
    int size;
    float* out;
};

struct SelectArgs {  // out [rows, size] = x[index[row]]
    const float* x;
    int64_t stride;
    const int32_t* index;
    int size;
    float* out;
};

struct SoftcapArgs {  // x = cap * tanh(x * scale / cap); cap 0: x * scale; [rows, size] in place
    float* x;
    int64_t stride;
    int rows, size;
    float cap, scale;
};

// What keys and values are kept in; of i8 and i16, each token of each kv head has a scale for its keys and one for its values.
enum class CacheType : uint8_t { f32, f16, bf16, e4m3, e5m2, i8, i16 };

// One layer's keys and values. Block b, kv head h starts at (b * kv_heads + h) * block_size / 16 tiles in each; the layout inside is the
// kernels' own (plan.h).
struct CacheLayer {
    CacheType type;
    int block_size, kv_heads, head_dim;
    int64_t num_blocks;
    std::byte* keys;
    std::byte* values;
};

struct StoreArgs {  // writes k, v [rows, kv_heads * head_dim] to their slots (block * block_size + offset)
    const float* k;
    const float* v;
    int64_t stride;
    const int64_t* slot_mapping;  // [rows]
    CacheLayer cache;
};

struct AttentionArgs {
    const float* q;  // [tokens, heads * head_dim]
    int64_t q_stride;
    float* out;  // like q
    int64_t out_stride;
    const int32_t* query_start;  // [seqs + 1]
    const int32_t* seq_lens;     // [seqs]: tokens in the cache, this step's included
    const int32_t* block_table;  // [seqs, table_stride]; entries wholly behind the window may be -1
    int64_t table_stride;
    int seqs, heads;
    int window;  // 0: full
    float scale, softcap;
    CacheLayer cache;
    std::byte* scratch;  // attention_scratch() bytes
};

struct SampleArgs;  // sampler.h

// exp, tanh: the vector functions themselves. sum, multiply_add: loops at the machine's limits of reading and of arithmetic.
enum class MathFunction : uint8_t { exp, tanh, sum, multiply_add };

// What one ISA can do. The order of the members is the order of the op in a step.
struct KernelTable {
    const char* name;
    int lanes;
    bool paired_halves;   // layout.h
    bool fastest_as_i16;  // whether attention takes the least time over keys and values of CacheType::i16

    Act (*act_of)(Format format);
    int64_t (*act_bytes)(Act act, int k);
    void (*quantize)(const QuantizeArgs&, Range rows);
    void (*linear)(const LinearArgs* list, int count, int thread, int threads);  // independent, of equal rows: shared out together
    void (*gated_linear)(const GatedArgs&, int thread, int threads);
    void (*embed)(const EmbedArgs&, Range rows);

    void (*rms_norm)(const NormArgs&, Range rows);
    void (*rope_angles)(const RopeAnglesArgs&, Range rows);
    void (*rope)(const RopeArgs&, Range rows);
    void (*activation)(const ActivationArgs&, Range rows);
    void (*add)(const AddArgs&, Range rows);
    void (*select)(const SelectArgs&, Range rows);
    void (*softcap)(const SoftcapArgs&, int thread, int threads);

    void (*store)(const StoreArgs&, Range rows);
    int64_t (*attention_scratch)(int max_tokens, int max_seqs, int heads, int head_dim, int64_t max_seq_len, int threads);
    void (*attention)(const AttentionArgs&, int thread, int threads);        // partials
    void (*attention_merge)(const AttentionArgs&, int thread, int threads);  // after all shares of that; may have nothing to do

    void (*sample)(const SampleArgs&, int thread, int threads);

    // Panels of `panel` columns for each format; 0 where the ISA does not take the format.
    int (*panel_of)(Format format);

    // For tests (accuracy) and benchmarks (limits). out [size] = exp or tanh of x [size]; out [lanes] = sums of x [size]; out [lanes] from
    // `size` fused multiply-adds of vectors, x [lanes] times itself.
    void (*math)(MathFunction function, const float* x, int64_t size, float* out);
};

}  // namespace octavo
