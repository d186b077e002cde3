// The cache's stores, and attention: a batch of sequences whose lengths lie around the edges of tiles and of ranges of keys.
#include <algorithm>
#include <cstring>

#include "isa_check.h"
#include "plan.h"

namespace check {

using namespace octavo;

namespace {

struct Case {
    CacheType type;
    int head_dim, heads, kv_heads, block_size, window;
    float softcap;
};

constexpr const char* kTypes[] = {"f32", "f16", "bf16", "e4m3", "e5m2", "i8", "i16"};

std::string name_of(const Case& s) {
    return std::string(kTypes[static_cast<int>(s.type)]) + " " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads of " +
           std::to_string(s.head_dim) + ", blocks of " + std::to_string(s.block_size) +
           (s.window ? ", window " + std::to_string(s.window) : "") + (s.softcap > 0 ? ", softcap" : "");
}

// Sequences with `queries` tokens of `lengths` in this step, their blocks in random order.
struct Sequences {
    std::vector<int32_t> queries, lengths, query_start, table;
    std::vector<int64_t> slots;  // of every token of every sequence
    int blocks = 0, table_stride = 0;
    int count() const { return static_cast<int>(lengths.size()); }
    int tokens() const { return query_start.back(); }
};

Sequences make_sequences(const Case& s, Random& random) {
    Sequences q;
    q.lengths = {15, 16, 17, 255, 256, 257, 300, 1};
    q.queries = {15, 1, 4, 1, 2, 9, 1, 1};
    q.query_start = {0};
    for (int32_t n : q.queries) q.query_start.push_back(q.query_start.back() + n);
    q.table_stride = 300 / s.block_size + 2;
    std::vector<int32_t> order;
    for (int32_t length : q.lengths)
        for (int b = 0; b * s.block_size < length; ++b) order.push_back(static_cast<int32_t>(order.size()));
    q.blocks = static_cast<int>(order.size()) + 1;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    q.table.assign(static_cast<size_t>(q.table_stride * q.count()), -1);
    size_t next = 0;
    for (int i = 0; i < q.count(); ++i) {
        int32_t* blocks = q.table.data() + i * q.table_stride;
        const int length = q.lengths[static_cast<size_t>(i)];
        for (int b = 0; b * s.block_size < length; ++b) blocks[b] = order[next++];
        for (int t = 0; t < length; ++t) q.slots.push_back(int64_t{blocks[t / s.block_size]} * s.block_size + t % s.block_size);
        const int seen = s.window ? std::max(0, length - q.queries[static_cast<size_t>(i)] - s.window + 1) : 0;
        for (int b = 0; (b + 1) * s.block_size <= seen; ++b) blocks[b] = -1;  // as the scheduler frees them
    }
    return q;
}

struct Cache {
    std::vector<std::byte> keys, values;
    CacheLayer layer;
    Cache(const Case& s, int blocks) {
        const int64_t bytes = int64_t{blocks} * s.kv_heads * (s.block_size / kKeyTile) * tile_bytes(s.type, s.head_dim);
        keys.resize(static_cast<size_t>(bytes) + 64);
        values.resize(static_cast<size_t>(bytes) + 64);
        layer = {s.type, s.block_size, s.kv_heads, s.head_dim, blocks, aligned(keys), aligned(values)};
        for (std::byte* p : {layer.keys, layer.values})  // the last block is nobody's: NaN
            std::memset(p + bytes / blocks * (blocks - 1), 0xff, static_cast<size_t>(bytes / blocks));
    }
    static std::byte* aligned(std::vector<std::byte>& v) { return v.data() + (-reinterpret_cast<uintptr_t>(v.data()) & 63); }
    bool same(const Cache& other) const {
        const size_t size = keys.size() - 64;
        return std::memcmp(layer.keys, other.layer.keys, size) == 0 && std::memcmp(layer.values, other.layer.values, size) == 0;
    }
};

void store(const KernelTable& table, const Cache& cache, const Matrix& k, const Matrix& v, const std::vector<int64_t>& slots, int threads) {
    for (int thread = 0; thread < threads; ++thread)
        table.store({k.row(0), v.row(0), k.stride, slots.data(), cache.layer}, share(static_cast<int64_t>(slots.size()), thread, threads));
}

// A power of two near 1 / sqrt(head_dim): q has the bits of bf16 here, so that a table that rounds scaled queries to bf16 does not change
// them.
float scale_of(const Case& s) { return s.head_dim < 64 ? 0.25f : s.head_dim < 128 ? 0.125f : 0.0625f; }

// The last `queries` tokens of `count` sequences from `first`, whose rows of q and out begin at `row`.
void attend(const KernelTable& table, const Case& s, const Cache& cache, const Matrix& q, Matrix& out, int row, const int32_t* queries,
            const int32_t* lengths, const int32_t* blocks, int table_stride, int count, int threads) {
    std::vector<int32_t> query_start{0};
    int longest = 1;
    for (int i = 0; i < count; ++i)
        query_start.push_back(query_start.back() + queries[i]), longest = std::max(longest, static_cast<int>(lengths[i]));
    std::vector<std::byte> scratch(
        static_cast<size_t>(table.attention_scratch(query_start.back(), count, s.heads, s.head_dim, longest, threads)), std::byte{0xff});
    const AttentionArgs args{q.row(row), q.stride, out.row(row), out.stride,  query_start.data(), lengths,     blocks,        table_stride,
                             count,      s.heads,  s.window,     scale_of(s), s.softcap,          cache.layer, scratch.data()};
    for (int thread = 0; thread < threads; ++thread) table.attention(args, thread, threads);
    for (int thread = 0; thread < threads; ++thread) table.attention_merge(args, thread, threads);
}

// Whether the table multiplies pairs of bf16, so that the weights p are rounded to it, with the scales of the values in them.
bool rounds_weights(const KernelTable& table, CacheType type) {
    const std::string name = table.name;
    return type != CacheType::f32 && type != CacheType::f16 && !scaled(type) &&
           (name == "avx512_bf16" || name == "neon_i8mm" || name == "scalar");
}

// The softmax turns an absolute error of a score into a relative one of p; the output then moves by that part of the largest value. A score
// errs by the roundings of its sum, which is at most |q| |k|; p, where it is rounded to bf16, by 2^-9. Beside i8 and i16, q and p are integers
// of up to 8191: half a unit of the largest q for each |k|, whose sum is at most sqrt(head_dim) times its norm; half a unit of the largest
// p for each of 256 values, either way, so that six standard deviations of their sum are 6 * 16 / sqrt(12) units.
double tolerance_of(const Context& c, const Case& s, double q_norm, double k_norm, double v_largest) {
    const double unit = rounds_weights(c.table, s.type) ? 0x1p-9 : 0.0;
    const bool integers = scaled(s.type);
    const double score = q_norm * k_norm * static_cast<double>(scale_of(s)) *
                         (kEpsilon * (s.head_dim / 8.0 + 1.0) + (integers ? std::sqrt(s.head_dim) / (2.0 * 8191.0) : 0.0));
    return v_largest * (2.0 * score + 2.0 * unit + 64.0 * kEpsilon + (integers ? 6.0 * 16.0 / std::sqrt(12.0) / 8191.0 : 0.0));
}

float rounded(CacheType type, float x, float scale) {
    switch (type) {
        case CacheType::f32:
            break;
        case CacheType::f16:
            return f16_to_f32(f32_to_f16(x));
        case CacheType::bf16:
            return bf16_to_f32(f32_to_bf16(x));
        case CacheType::e4m3:
            return e4m3_to_f32(f32_to_e4m3(x));
        case CacheType::e5m2:
            return e5m2_to_f32(f32_to_e5m2(x));
        case CacheType::i8:
            return std::nearbyint(x * (127.0f / scale)) * (scale / 127.0f);
        case CacheType::i16:
            return std::nearbyint(x * (4095.0f / scale)) * (scale / 4095.0f);
    }
    return x;
}

// As the cache of `s` gives it back: i8 and i16 have the scale of the largest of each head.
Matrix rounded(const Case& s, Matrix m) {
    for (int r = 0; r < m.rows; ++r)
        for (float* head = m.row(r); head < m.row(r) + m.columns; head += s.head_dim) {
            float largest = 0.0f;
            for (int d = 0; d < s.head_dim; ++d) largest = std::fmax(largest, std::fabs(head[d]));
            for (int d = 0; d < s.head_dim; ++d) head[d] = rounded(s.type, head[d], largest);
        }
    return m;
}

template <class Change>
Matrix changed(Matrix m, Change change) {
    for (int r = 0; r < m.rows; ++r)
        for (int i = 0; i < m.columns; ++i) m.row(r)[i] = change(m.row(r)[i]);
    return m;
}

double largest_norm(const Matrix& m, int size) {  // of the pieces of `size` values
    double largest = 0.0;
    for (int r = 0; r < m.rows; ++r)
        for (int begin = 0; begin < m.columns; begin += size) {
            double sum = 0.0;
            for (int i = begin; i < begin + size; ++i) sum += static_cast<double>(m.row(r)[i]) * static_cast<double>(m.row(r)[i]);
            largest = std::fmax(largest, std::sqrt(sum));
        }
    return largest;
}

void check_case(Context& c, const Case& s) {
    Random random(static_cast<uint64_t>(s.head_dim * 100 + s.heads) + static_cast<uint64_t>(s.type));
    const Sequences seqs = make_sequences(s, random);
    const int total = static_cast<int>(seqs.slots.size());
    // With its last bit set no value lies half way between two of 16 bits.
    auto stored = [&](float x) { return c.emulated ? bits_to_f32(f32_to_bits(x) | 1u) : x; };
    const Matrix k = changed(Matrix::normal(total, s.kv_heads * s.head_dim, random), stored);
    const Matrix v = changed(Matrix::normal(total, s.kv_heads * s.head_dim, random), stored);
    const Matrix q =
        changed(Matrix::normal(seqs.tokens(), s.heads * s.head_dim, random), [](float x) { return bf16_to_f32(f32_to_bf16(x)); });

    const Cache cache(s, seqs.blocks), peer(s, seqs.blocks), shared(s, seqs.blocks);
    std::vector<int64_t> slots = seqs.slots;
    store(c.table, cache, k, v, slots, 1);
    store(c.scalar, peer, k, v, slots, 1);
    store(c.table, shared, k, v, slots, 3);
    c.report("attention store " + name_of(s), cache.same(peer) ? 0.0 : kInfinite, cache.same(shared) ? "" : "other bits with 3 threads");

    // The definition reads the rounded keys and values from a cache of float32, so that it multiplies no pairs itself.
    Case exact_case = s;
    exact_case.type = CacheType::f32;
    const Cache exact(exact_case, seqs.blocks);
    const Matrix wanted_k = rounded(s, k), wanted_v = rounded(s, v);
    store(c.scalar, exact, wanted_k, wanted_v, slots, 1);

    const Matrix empty(seqs.tokens(), s.heads * s.head_dim);
    auto whole = [&](const KernelTable& table, const Case& of, const Cache& from, int threads) {
        Matrix out = empty;
        attend(table, of, from, q, out, 0, seqs.queries.data(), seqs.lengths.data(), seqs.table.data(), seqs.table_stride, seqs.count(),
               threads);
        return out;
    };
    const Matrix want = whole(c.scalar, exact_case, exact, 1), got = whole(c.table, s, peer, 1);
    const double tolerance = tolerance_of(c, s, largest_norm(q, s.head_dim), largest_norm(wanted_k, s.head_dim), largest_norm(wanted_v, 1));
    double worst = 0.0;
    for (int r = 0; r < want.rows; ++r)
        for (int i = 0; i < want.columns; ++i) worst = std::fmax(worst, part_of(got.row(r)[i], want.row(r)[i], tolerance));

    std::string broken;
    auto law = [&](bool holds, const std::string& what) {
        if (!holds && broken.empty()) broken = what;
    };
    law(got.kept_outside(0, got.rows, empty), "wrote outside its rows");
    for (int threads : {2, 3, 7}) {
        const Matrix out = whole(c.table, s, peer, threads);
        for (int r = 0; r < out.rows; ++r) law(out.same_row(r, got), "other bits with " + std::to_string(threads) + " threads");
    }
    for (int i = 0; i < seqs.count(); ++i) {  // alone, then token by token
        const auto at = static_cast<size_t>(i);
        const int first = seqs.query_start[at], queries = seqs.queries[at], threads = 1 + i % 3;
        const int32_t* blocks = seqs.table.data() + i * seqs.table_stride;
        Matrix out = empty;
        attend(c.table, s, peer, q, out, first, &seqs.queries[at], &seqs.lengths[at], blocks, seqs.table_stride, 1, threads);
        for (int r = first; r < first + queries; ++r) law(out.same_row(r, got), "other bits for a sequence alone");
        law(out.kept_outside(first, queries, empty), "wrote outside the rows of a sequence");
        for (int t = 0; t < queries && queries > 1; t += queries > 4 ? 3 : 1) {
            Matrix one = empty;
            const int32_t single = 1, length = seqs.lengths[at] - queries + t + 1;
            attend(c.table, s, peer, q, one, first + t, &single, &length, blocks, seqs.table_stride, 1, 1);
            law(one.same_row(first + t, got), "other bits for a token alone");
        }
    }
    c.report("attention " + name_of(s), worst, broken);
}

}  // namespace

void check_attention(Context& c) {
    for (CacheType type :
         {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::e4m3, CacheType::e5m2, CacheType::i8, CacheType::i16}) {
        check_case(c, {type, 64, 6, 2, 16, 0, 0.0f});
        check_case(c, {type, 128, 4, 1, 32, 0, 0.0f});
        check_case(c, {type, 32, 3, 3, 64, 100, 0.0f});
        check_case(c, {type, 40, 5, 1, 16, 17, 16.0f});
        check_case(c, {type, 64, 7, 1, 128, 256, 0.0f});
    }
}

}  // namespace check
