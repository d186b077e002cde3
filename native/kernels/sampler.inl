// From a row of logits to a token. A row is one thread's work from end to end, so that nothing depends on the threads.
//
// The order is vLLM's: mask, biases, penalties; arg-max, or temperature, min_p, top_k, top_p, and a draw from what is kept. A logit that is
// NaN counts as -inf, and +inf as the largest float. Equal logits are ordered by id, the lowest first. All three filters keep a head of
// that order, so that none sorts the vocabulary: maxima of blocks of 64 say where the candidates can be, and a radix select finds the cut.
#include <cmath>

namespace octavo::ISA::sampler {

constexpr float kInfinity = __builtin_inff();
constexpr float kLargest = 3.402823466e+38f;
constexpr float kLeastLogprob = -9999.0f;  // every reported number can be written as JSON

// max(a, b) is b where a is NaN, on every level.
static inline vf clean(vf x) { return min(max(x, set1(-kInfinity)), set1(kLargest)); }
static inline float clean(float x) {
    float low = x > -kInfinity ? x : -kInfinity;
    return low < kLargest ? low : kLargest;
}

static inline vf load_padded(const float* p, int n) {
    if (n >= W) return load(p);
    float lanes[W];
    for (int i = 0; i < W; ++i) lanes[i] = i < n ? p[i] : -kInfinity;
    return load(lanes);
}

// A row of logits under work. With `maxima` filled, most of the row need not be read again.
struct Row {
    const float* x;
    int vocab;
    float maximum;  // -inf: no token is possible
    float* maxima;  // of each block of kSampleBlock
};

struct Candidates {  // in ascending order of ids
    int32_t* ids;
    float* values;
    float* weights;  // exp((value - maximum) / temperature)
    int size;
};

struct Workspace {
    float* logits;
    Candidates candidates;
    float* maxima;
    double* panels;
    double* buckets;
};

static Workspace workspace_at(std::byte* scratch, int64_t vocab) {
    int64_t padded = (vocab + kSamplePanel - 1) / kSamplePanel * kSamplePanel;
    double* panels = reinterpret_cast<double*>(scratch);
    double* buckets = panels + padded / kSamplePanel;
    float* logits = reinterpret_cast<float*>(buckets + kSampleBuckets);
    float* values = logits + padded;
    float* weights = values + padded;
    int32_t* ids = reinterpret_cast<int32_t*>(weights + padded);
    float* maxima = reinterpret_cast<float*>(ids + padded);
    return {logits, {ids, values, weights, 0}, maxima, panels, buckets};
}

static Row scan(const float* x, int vocab, float* maxima) {
    const vf lowest = set1(-kInfinity);
    vf best = lowest;
    int block = 0;
    for (int begin = 0; begin < vocab; begin += kSampleBlock, ++block) {
        const float* p = x + begin;
        vf a = lowest, b = lowest;  // max(x, a) skips a NaN
        if (begin + kSampleBlock <= vocab) {
            for (int i = 0; i < kSampleBlock; i += 2 * W) {
                a = max(load(p + i), a);
                b = max(load(p + i + W), b);
            }
        } else {
            for (int i = begin; i < vocab; i += W) a = max(load_padded(x + i, vocab - i), a);
        }
        a = max(a, b);
        best = max(a, best);
        maxima[block] = clean(reduce_max(a));
    }
    return {x, vocab, clean(reduce_max(best)), maxima};
}

static int block_end(const Row& row, int begin) { return begin + kSampleBlock < row.vocab ? begin + kSampleBlock : row.vocab; }

static int arg_max(const Row& row) {
    int block = 0;
    while (row.maxima[block] != row.maximum) ++block;
    int id = block * kSampleBlock;
    while (clean(row.x[id]) != row.maximum) ++id;
    return id;
}

// Sum of exp((x - maximum) * inverse) over the row; panels[p] becomes the sum of panel p.
static double sum_weights(const Row& row, float inverse, double* panels) {
    const vf maximum = set1(row.maximum), factor = set1(inverse);
    double total = 0.0;
    int panel = 0;
    for (int begin = 0; begin < row.vocab; begin += kSamplePanel, ++panel) {
        vf a = zero(), b = zero();
        if (begin + kSamplePanel <= row.vocab) {
            for (int i = begin; i < begin + kSamplePanel; i += 2 * W) {
                a = add(a, exp(mul(sub(clean(load(row.x + i)), maximum), factor)));
                b = add(b, exp(mul(sub(clean(load(row.x + i + W)), maximum), factor)));
            }
        } else {
            for (int i = begin; i < row.vocab; i += W)
                a = add(a, exp(mul(sub(clean(load_padded(row.x + i, row.vocab - i)), maximum), factor)));
        }
        panels[panel] = static_cast<double>(reduce_add(add(a, b)));
        total += panels[panel];
    }
    return total;
}

// out = exp((x - maximum) * inverse) for n values; `out` may be written up to a whole vector.
static void weigh(const float* x, int n, float maximum, float inverse, float* out) {
    for (int i = 0; i < n; i += W) store(out + i, exp(mul(sub(clean(load_padded(x + i, n - i)), set1(maximum)), set1(inverse))));
}

// The first index at which the running sum of weights passes `point`; where rounding lets none do so, the last with any weight.
static int draw(const float* weights, int n, double point) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) {
        sum += static_cast<double>(weights[i]);
        if (sum > point) return i;
    }
    int last = n - 1;
    while (last > 0 && !(weights[last] > 0.0f)) --last;
    return last;
}

// Unsigned integers in the order of the floats; -0 equals 0.
static inline uint32_t to_key(float x) {
    uint32_t bits = f32_to_bits(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static inline float from_key(uint32_t key) { return bits_to_f32(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

struct Cut {  // keeps what is above `value`, and the first `ties` that equal it
    float value;
    int ties;
};

struct Bucket {
    int index;
    double above;  // weight of the buckets before it
};

// The bucket, from `first` by `step`, in which the running sum reaches `target`; the last that is not empty, if none does.
static Bucket reach(const double* buckets, int size, int first, int step, double above, double target) {
    Bucket found{first, above};
    for (int i = 0, b = first; i < size; ++i, b += step) {
        if (!(buckets[b] > 0.0)) continue;
        found = {b, above};
        above += buckets[b];
        if (above >= target) break;
    }
    return found;
}

static inline double weight_of(const float* weights, int i) { return weights ? static_cast<double>(weights[i]) : 1.0; }

constexpr int kBand = 4096;
struct Band {
    float values[kBand], weights[kBand];
    int size;
    double above;  // weight of what is before the band
};

// Of a long list, the part in which the head ends: one of equal steps between the extremes, which spread far better than the leading
// bits do (those of 8 to 16 are one bucket in four, and every count waits for the last). False if that part is too long, as with many ties.
static bool narrow(const float* values, const float* weights, int n, double target, double* buckets, Band& band) {
    float high = -kInfinity, low = kInfinity;
    for (int i = 0; i < n; ++i) {
        high = values[i] > high ? values[i] : high;
        low = values[i] < low && values[i] > -kInfinity ? values[i] : low;
    }
    constexpr float last = kSampleBuckets - 1;
    float scale = last / (high - low);
    auto bucket = [&](float x) {  // never falls as x falls: also for -inf, and where the scale is 0 or infinite
        float step = (high - x) * scale;
        return static_cast<int>(step < last ? step : last);
    };
    for (int b = 0; b < kSampleBuckets; ++b) buckets[b] = 0.0;
    for (int i = 0; i < n; ++i) buckets[bucket(values[i])] += weight_of(weights, i);
    Bucket found = reach(buckets, kSampleBuckets, 0, 1, 0.0, target);
    band.above = found.above;
    band.size = 0;
    for (int i = 0; i < n; ++i) {
        if (bucket(values[i]) != found.index) continue;
        if (band.size == kBand) return false;
        band.values[band.size] = values[i];
        band.weights[band.size++] = static_cast<float>(weight_of(weights, i));
    }
    return true;
}

// The shortest head of the order whose weights sum to `target` or more (all of it, if none does). Without weights, each counts 1.
static Cut select(const float* values, const float* weights, int n, double target, double* buckets) {
    constexpr int shifts[] = {21, 10, 0}, bits[] = {11, 11, 10};
    double above = 0.0;
    Band band;
    if (n > kBand && narrow(values, weights, n, target, buckets, band)) {
        values = band.values;
        weights = band.weights;
        n = band.size;
        above = band.above;
    }
    uint32_t prefix = 0, known = 0;
    for (int pass = 0; pass < 3; ++pass) {
        int size = 1 << bits[pass], shift = shifts[pass];
        for (int b = 0; b < size; ++b) buckets[b] = 0.0;
        for (int i = 0; i < n; ++i) {
            uint32_t key = to_key(values[i]);
            if ((key & known) == prefix) buckets[(key >> shift) & static_cast<uint32_t>(size - 1)] += weight_of(weights, i);
        }
        Bucket found = reach(buckets, size, size - 1, -1, above, target);
        above = found.above;
        prefix |= static_cast<uint32_t>(found.index) << shift;
        known |= static_cast<uint32_t>(size - 1) << shift;
    }
    Cut cut{from_key(prefix), 0};
    for (int i = 0; i < n; ++i) {
        if (values[i] != cut.value) continue;
        ++cut.ties;
        above += weight_of(weights, i);
        if (above >= target) break;
    }
    return cut;
}

static void keep(Candidates& c, Cut cut) {
    int size = 0;
    for (int i = 0; i < c.size; ++i) {
        bool ties = c.values[i] == cut.value, kept = (c.values[i] > cut.value) | (ties & (cut.ties > 0));
        cut.ties -= ties;
        c.ids[size] = c.ids[i];
        c.values[size] = c.values[i];
        c.weights[size] = c.weights[i];
        size += kept;
    }
    c.size = size;
}

static double sum(const Candidates& c) {
    double sums[4] = {};
    for (int i = 0; i < c.size; ++i) sums[i & 3] += static_cast<double>(c.weights[i]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// All tokens with a logit of at least `least` and a scaled distance to the maximum of at least `floor`, and their weights.
static double collect(const Row& row, float least, float floor, float inverse, Candidates& c) {
    int size = 0;  // in a register: every store below could be to c or row, for all that the compiler knows
    int32_t* ids = c.ids;
    float* values = c.values;
    const float maximum = row.maximum;
    auto passes = [=](float x) { return (x >= least) & ((x - maximum) * inverse >= floor) & (x > -kInfinity); };
    for (int begin = 0, block = 0; begin < row.vocab; begin += kSampleBlock, ++block) {
        if (!passes(row.maxima[block])) continue;
        for (int i = begin, end = block_end(row, begin); i < end; ++i) {
            float x = clean(row.x[i]);
            ids[size] = i;
            values[size] = x;
            size += passes(x);
        }
    }
    c.size = size;
    weigh(c.values, c.size, row.maximum, inverse, c.weights);
    return sum(c);
}

// A logit that at least k tokens reach: the k-th largest block maximum.
static float reached_by(const Row& row, int k, double* buckets) {
    int blocks = (row.vocab + kSampleBlock - 1) / kSampleBlock;
    return k <= blocks ? select(row.maxima, nullptr, blocks, k, buckets).value : -kInfinity;
}

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011); 53 bits of its first two words, in [0, 1).
static double uniform(uint64_t seed, int32_t sequence, int64_t position) {
    uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32),
                           static_cast<uint32_t>(sequence), 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
        uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                            static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
        std::memcpy(counter, next, sizeof next);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    uint64_t bits = (uint64_t{counter[0]} << 32 | counter[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

// Leaves in `c` what the filters keep. The sum of all weights is needed for top_p alone, and only where nothing was cut before it.
static void filter(const SampleArgs& a, int r, const Row& row, float inverse, const Workspace& work, Candidates& c, double& total) {
    int top_k = a.top_k[r] < row.vocab ? a.top_k[r] : 0;
    bool by_min_p = a.min_p[r] > 0.0f;
    double top_p = static_cast<double>(a.top_p[r]);
    if (top_k <= 0 && !by_min_p) {
        total = sum_weights(row, inverse, work.panels);
        double target = top_p * total;
        // What is further than `far` from the maximum weighs less than 1 - top_p of the total together, and cannot be in the head.
        // Most rows do with much less, which is tried first.
        float far = static_cast<float>(std::log(row.vocab / ((1.0 - top_p) * total))) + 0.01f;
        float near = 4.0f - static_cast<float>(std::log(1.0 - top_p));
        if (near >= far || collect(row, -kInfinity, -near, inverse, c) < target) collect(row, -kInfinity, -far, inverse, c);
        keep(c, select(c.values, c.weights, c.size, target, work.buckets));
        return;
    }
    float least = top_k > 0 ? reached_by(row, top_k, work.buckets) : -kInfinity;
    float floor = by_min_p ? static_cast<float>(std::log(static_cast<double>(a.min_p[r]))) : -kInfinity;
    double mass = collect(row, least, floor, inverse, c);
    if (top_k > 0 && c.size > top_k) {
        keep(c, select(c.values, nullptr, c.size, top_k, work.buckets));
        mass = sum(c);
    }
    if (top_p < 1.0) keep(c, select(c.values, c.weights, c.size, top_p * mass, work.buckets));
}

// `total` is left at 0 unless the sum of all weights was made on the way.
static int choose(const SampleArgs& a, int r, const Row& row, const Workspace& work, double& total) {
    float temperature = a.temperature[r];
    if (!(temperature >= 1e-5f) || a.top_k[r] == 1 || !(a.top_p[r] > 0.0f) || a.min_p[r] >= 1.0f) return arg_max(row);
    float inverse = 1.0f / temperature;
    double u = uniform(a.seed[r], a.sequence[r], a.position[r]);
    bool limited = (a.top_k[r] > 0 && a.top_k[r] < row.vocab) || a.top_p[r] < 1.0f || a.min_p[r] > 0.0f;
    if (limited) {
        Candidates c = work.candidates;
        filter(a, r, row, inverse, work, c, total);
        return c.ids[draw(c.weights, c.size, u * sum(c))];
    }
    total = sum_weights(row, inverse, work.panels);
    double point = u * total, before = 0.0;
    int panels = (row.vocab + kSamplePanel - 1) / kSamplePanel, panel = 0, last = 0;
    for (; panel < panels; ++panel) {
        if (!(work.panels[panel] > 0.0)) continue;
        last = panel;
        if (before + work.panels[panel] > point) break;
        before += work.panels[panel];
    }
    if (panel == panels) before -= work.panels[last];
    int begin = last * kSamplePanel, n = row.vocab - begin < kSamplePanel ? row.vocab - begin : kSamplePanel;
    weigh(row.x + begin, n, row.maximum, inverse, work.candidates.weights);
    return begin + draw(work.candidates.weights, n, point - before);
}

// Tokens that come before `id` in the order, plus one.
static int rank_of(const Row& row, int id) {
    float x = clean(row.x[id]);
    int before = 0;
    for (int begin = 0, block = 0; begin < row.vocab; begin += kSampleBlock, ++block) {
        if (row.maxima[block] < x) continue;
        for (int i = begin, end = block_end(row, begin); i < end; ++i) {
            float other = clean(row.x[i]);
            before += (other > x) | ((other == x) & (i < id));
        }
    }
    return before + 1;
}

// The first k tokens of the order, by insertion: ids come in ascending order, so that a tie never moves up.
static void top(const Row& row, int k, double* buckets, int32_t* ids, float* values) {
    float least = reached_by(row, k, buckets);
    int size = 0;
    for (int begin = 0, block = 0; begin < row.vocab; begin += kSampleBlock, ++block) {
        if (row.maxima[block] < least) continue;
        for (int i = begin, end = block_end(row, begin); i < end; ++i) {
            float x = clean(row.x[i]);
            if (size == k && !(x > values[k - 1])) continue;
            int at = size < k ? size++ : k - 1;
            for (; at > 0 && x > values[at - 1]; --at) {
                values[at] = values[at - 1];
                ids[at] = ids[at - 1];
            }
            values[at] = x;
            ids[at] = i;
        }
    }
}

// The row after mask, biases and penalties: a copy, since several rows may sample from the same logits.
static const float* process(const SampleArgs& a, int r, const float* x, float* out) {
    const TokenBias& bias = a.bias[r];
    const TokenPenalties& penalties = a.penalties[r];
    if (!a.masked[r] && bias.size == 0 && penalties.size == 0) return x;
    auto valid = [&](int32_t id) { return id >= 0 && id < a.vocab; };
    if (a.masked[r]) {
        const uint32_t* mask = a.mask + r * a.mask_words;
        for (int begin = 0; begin < a.vocab; begin += 32) {
            uint32_t word = mask[begin / 32];
            int n = a.vocab - begin < 32 ? a.vocab - begin : 32;
            if (word == 0xffffffffu)
                std::memcpy(out + begin, x + begin, sizeof(float) * static_cast<size_t>(n));
            else
                for (int i = 0; i < n; ++i) out[begin + i] = word >> i & 1u ? x[begin + i] : -kInfinity;
        }
    } else {
        std::memcpy(out, x, sizeof(float) * static_cast<size_t>(a.vocab));
    }
    for (int i = 0; i < bias.size; ++i)
        if (int32_t id = bias.ids[i]; valid(id)) out[id] = clean(clean(out[id]) + bias.values[i]);
    float repetition = a.repetition_penalty[r], frequency = a.frequency_penalty[r], presence = a.presence_penalty[r];
    for (int i = 0; i < penalties.size; ++i) {
        int32_t id = penalties.ids[i], count = penalties.counts[i];
        if (!valid(id)) continue;
        float y = clean(out[id]);
        y = clean(y > 0.0f ? y / repetition : y * repetition);
        if (count > 0) y = clean(y - frequency * static_cast<float>(count) - presence);
        out[id] = y;
    }
    return out;
}

static void sample_row(const SampleArgs& a, int r, const Workspace& work) {
    const float* x = a.logits + a.source[r] * a.logits_stride;
    bool given = a.target[r] >= 0;
    int id = given && a.target[r] < a.vocab ? a.target[r] : 0;
    SampleStatus status = SampleStatus::ok;
    double total = 0.0;
    Row row{};
    bool raw = false;  // whether `row` is of the logits as they came
    if (!given) {
        const float* y = process(a, r, x, work.logits);
        row = scan(y, a.vocab, work.maxima);
        raw = y == x;
        if (row.maximum > -kInfinity)
            id = choose(a, r, row, work, total);
        else
            status = SampleStatus::all_banned;
    }
    a.token_ids[r] = id;
    a.logprobs[r] = 0.0f;
    a.ranks[r] = 0;
    a.status[r] = static_cast<int32_t>(status);
    int wanted = a.num_logprobs[r];
    bool reports = given || wanted >= 0;
    if (!reports && status == SampleStatus::ok) return;
    if (!raw) row = scan(x, a.vocab, work.maxima);
    if (row.maximum == -kInfinity) a.status[r] = static_cast<int32_t>(SampleStatus::bad_logits);
    if (!reports) return;

    // The sum is the one that a draw at temperature 1 from unprocessed logits has just made.
    bool summed = raw && total > 0.0 && a.temperature[r] == 1.0f;
    double log_sum = std::log(summed ? total : sum_weights(row, 1.0f, work.panels));
    auto logprob = [&](float value) {  // without any finite logit: NaN, so that every token is as unlikely as can be
        float result = static_cast<float>(static_cast<double>(value) - static_cast<double>(row.maximum) - log_sum);
        return result > kLeastLogprob ? result : kLeastLogprob;
    };
    a.logprobs[r] = logprob(clean(x[id]));
    a.ranks[r] = rank_of(row, id);
    int64_t count = wanted < a.vocab ? wanted : a.vocab;
    if (count > a.top_stride) count = a.top_stride;
    if (count <= 0) return;
    int32_t* ids = a.top_ids + r * a.top_stride;
    float* values = a.top_logprobs + r * a.top_stride;
    top(row, static_cast<int>(count), work.buckets, ids, values);
    for (int i = 0; i < count; ++i) values[i] = logprob(values[i]);
}

}  // namespace octavo::ISA::sampler

namespace octavo::ISA {

static void sample(const SampleArgs& a, int thread, int threads) {
    sampler::Workspace work = sampler::workspace_at(a.scratch + thread * sample_scratch(a.vocab), a.vocab);
    Range range = share(a.rows, thread, threads);
    for (int64_t r = range.begin; r < range.end; ++r) sampler::sample_row(a, static_cast<int>(r), work);
}

}  // namespace octavo::ISA
