#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "shares.h"

namespace octavo {

namespace {

// What a file's type stores: blocks of `values` values in `bytes` bytes, as q = 0, 1, ... and w = scale * (q - zero), or scale * q +
// minimum.
struct SourceType {
    const char* name;
    int values, bytes;
    Format format;     // the one that keeps every bit
    int group, super;  // of the packed integers
    int zero;
    bool minimum;
};

constexpr SourceType kSources[] = {
    {"f32", 1, 4, Format::f32, 0, 0, 0, false},
    {"f16", 1, 2, Format::f16, 0, 0, 0, false},
    {"bf16", 1, 2, Format::bf16, 0, 0, 0, false},
    {"q4_0", 32, 18, Format::i4, 32, 0, 8, false},
    {"q4_1", 32, 20, Format::i4, 32, 0, 0, true},
    {"q5_0", 32, 22, Format::i5, 32, 0, 16, false},
    {"q5_1", 32, 24, Format::i5, 32, 0, 0, true},
    {"q8_0", 32, 34, Format::i8, 32, 0, 128, false},
    {"q2_k", 256, 84, Format::i2, 16, kSuper, 0, true},
    {"q3_k", 256, 110, Format::i3, 16, kSuper, 4, false},
    {"q4_k", 256, 144, Format::i4, 32, kSuper, 0, true},
    {"q5_k", 256, 176, Format::i5, 32, kSuper, 0, true},
    {"q6_k", 256, 210, Format::i6, 16, kSuper, 32, false},
};
constexpr const char* kFormats[] = {"f32", "f16", "bf16", "i2", "i3", "i4", "i5", "i6", "i8", "i8s"};
constexpr int kNibbles = 15;    // the largest value of 4 bits
constexpr int kScaleTries = 5;  // of a group of 4 bits

const SourceType& type_of(Source source) { return kSources[static_cast<int>(source)]; }

// 256 values of one row of a quantised tensor, as stored.
struct Chunk {
    uint8_t q[kSuper];
    f16 scale[8], minimum[8];               // one level: of each 32 values; two levels: the first of each is the super group's
    int8_t factor[16], minimum_factor[16];  // two levels: of each group
};

template <class T>
T read(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

f16 negated(f16 value) { return value ^ 0x8000u; }

// 32 nibbles: the low ones of 16 bytes are values 0 to 15, the high ones 16 to 31.
void split_nibbles(const std::byte* p, uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = static_cast<uint8_t>(p[i]) & 15;
        q[16 + i] = static_cast<uint8_t>(p[i]) >> 4;
    }
}

// One block of 32 values.
void read_block(Source source, const std::byte* p, uint8_t* q, f16& scale, f16& minimum) {
    scale = read<f16>(p);
    p += 2;
    if (type_of(source).minimum) {
        minimum = read<f16>(p);
        p += 2;
    }
    if (source == Source::q8_0) {
        for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(p[i]) ^ 0x80u;  // signed to offset by 128
        return;
    }
    uint32_t fifth = 0;
    if (source == Source::q5_0 || source == Source::q5_1) {
        fifth = read<uint32_t>(p);
        p += 4;
    }
    split_nibbles(p, q);
    if (fifth)
        for (int i = 0; i < 32; ++i) q[i] |= static_cast<uint8_t>((fifth >> i & 1u) << 4);
}

// The scale factors and minimum factors, of 6 bits, of eight groups in 12 bytes.
void read_factors(const std::byte* bytes, int8_t* scale, int8_t* minimum) {
    uint8_t b[12];
    std::memcpy(b, bytes, 12);
    for (int i = 0; i < 4; ++i) {
        scale[i] = static_cast<int8_t>(b[i] & 63);
        minimum[i] = static_cast<int8_t>(b[4 + i] & 63);
        scale[4 + i] = static_cast<int8_t>((b[8 + i] & 15) | (b[i] >> 6 << 4));
        minimum[4 + i] = static_cast<int8_t>((b[8 + i] >> 4) | (b[4 + i] >> 6 << 4));
    }
}

// The lowest two bits of Q2_K and Q3_K stand in 64 bytes: those of value i of a half of 128 in byte i % 32 of the half's 32.
void read_two_bits(const uint8_t* low, uint8_t* q) {
    for (int i = 0; i < kSuper; ++i) q[i] = low[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}

void read_q2_k(const uint8_t* p, Chunk& out) {
    for (int group = 0; group < 16; ++group) {
        out.factor[group] = static_cast<int8_t>(p[group] & 15);
        out.minimum_factor[group] = static_cast<int8_t>(p[group] >> 4);
    }
    read_two_bits(p + 16, out.q);
    out.scale[0] = read<f16>(p + 80);
    out.minimum[0] = negated(read<f16>(p + 82));
}

void read_q3_k(const uint8_t* p, Chunk& out) {
    read_two_bits(p + 32, out.q);
    for (int i = 0; i < kSuper; ++i) out.q[i] |= static_cast<uint8_t>((p[i % 32] >> (i / 32) & 1) << 2);
    const uint8_t* factors = p + 96;  // the lower four bits of each, then the upper two of every fourth in a byte
    for (int group = 0; group < 16; ++group) {
        const int low = factors[group % 8] >> (group / 8 * 4) & 15, high = factors[8 + group % 4] >> (group / 4 * 2) & 3;
        out.factor[group] = static_cast<int8_t>((low | high << 4) - 32);
    }
    out.scale[0] = read<f16>(p + 108);
}

void read_super(Source source, const std::byte* p, Chunk& out) {
    if (source == Source::q2_k) return read_q2_k(reinterpret_cast<const uint8_t*>(p), out);
    if (source == Source::q3_k) return read_q3_k(reinterpret_cast<const uint8_t*>(p), out);
    if (source == Source::q6_k) {
        const uint8_t* low = reinterpret_cast<const uint8_t*>(p);
        const uint8_t* high = low + 128;
        for (int part = 0; part < 2; ++part, low += 64, high += 32)
            for (int i = 0; i < 32; ++i) {
                uint8_t* q = out.q + 128 * part + i;
                q[0] = static_cast<uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
                q[32] = static_cast<uint8_t>((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
                q[64] = static_cast<uint8_t>((low[i] >> 4) | (high[i] >> 4 & 3) << 4);
                q[96] = static_cast<uint8_t>((low[32 + i] >> 4) | (high[i] >> 6) << 4);
            }
        std::memcpy(out.factor, p + 192, 16);
        out.scale[0] = read<f16>(p + 208);
        return;
    }
    out.scale[0] = read<f16>(p);
    out.minimum[0] = negated(read<f16>(p + 2));  // these types subtract their minima
    read_factors(p + 4, out.factor, out.minimum_factor);
    p += 16;
    const uint8_t* fifth = reinterpret_cast<const uint8_t*>(p);
    if (source == Source::q5_k) p += 32;
    for (int part = 0; part < 4; ++part)  // 32 bytes: the low nibbles are a group, the high ones the next
        for (int i = 0; i < 32; ++i) {
            uint8_t byte = static_cast<uint8_t>(p[32 * part + i]);
            uint8_t* q = out.q + 64 * part + i;
            q[0] = byte & 15;
            q[32] = byte >> 4;
            if (source == Source::q5_k) {
                q[0] |= static_cast<uint8_t>((fifth[i] >> (2 * part) & 1) << 4);
                q[32] |= static_cast<uint8_t>((fifth[i] >> (2 * part + 1) & 1) << 4);
            }
        }
}

// `count` (at most 256) values of a row; p points at their first block.
void read_chunk(Source source, const std::byte* p, int count, Chunk& out) {
    const SourceType& type = type_of(source);
    if (type.super) return read_super(source, p, out);
    for (int block = 0; block < count / 32; ++block)
        read_block(source, p + block * type.bytes, out.q + 32 * block, out.scale[block], out.minimum[block]);
}

void read_floats(Source source, const std::byte* p, int count, float* out) {
    const SourceType& type = type_of(source);
    if (source == Source::f32) std::memcpy(out, p, sizeof(float) * static_cast<size_t>(count));
    if (source == Source::f16)
        for (int i = 0; i < count; ++i) out[i] = f16_to_f32(read<f16>(p + 2 * i));
    if (source == Source::bf16)
        for (int i = 0; i < count; ++i) out[i] = bf16_to_f32(read<bf16>(p + 2 * i));
    if (type.group == 0) return;
    Chunk chunk;
    read_chunk(source, p, count, chunk);
    for (int group = 0; group < count / type.group; ++group) {
        const int at = type.super ? 0 : group;
        double scale = f16_to_f32(chunk.scale[at]), minimum = type.minimum ? f16_to_f32(chunk.minimum[at]) : 0.0f;
        if (type.super) scale *= chunk.factor[group];
        if (type.super && type.minimum) minimum *= chunk.minimum_factor[group];
        if (!type.minimum) minimum = -type.zero * scale;
        for (int i = group * type.group; i < (group + 1) * type.group; ++i) out[i] = static_cast<float>(scale * chunk.q[i] + minimum);
    }
}

// 32 values as the quads of one column.
template <int kLow, int kHigh>
void write_quads(const uint8_t* q, bool paired, int panel, std::byte* column) {
    constexpr uint32_t kEach = 0x01010101u, kLowMask = kEach * ((1u << kLow) - 1), kHighMask = kEach * ((1u << kHigh) - 1);
    uint32_t rows[kLow + kHigh] = {};
    for (int quad = 0; quad < 8; ++quad) {
        const BitPlace low = bit_place(kLow, quad), high = bit_place(kHigh, quad);
        const uint8_t* half = q + 2 * quad;
        const uint32_t four = paired ? read<uint16_t>(half) | uint32_t{read<uint16_t>(half + 16)} << 16 : read<uint32_t>(q + 4 * quad);
        rows[low.row] |= (four & kLowMask) << low.bit;
        if constexpr (kHigh > 0) rows[kLow + high.row] |= (four >> kLow & kHighMask) << high.bit;
    }
    for (int row = 0; row < kLow + kHigh; ++row) std::memcpy(column + row * panel * 4, rows + row, 4);
}

// Writes the values [k, k + count) of one column of an integer panel.
template <Format F>
void write_integers(const PackedWeight& weight, bool paired_halves, std::byte* panel, int column, int64_t k, int count,
                    const Chunk& chunk) {
    const PackedWeight w = weight;  // a copy: for all the compiler knows, a byte that is written may lie in the original
    auto put = [](std::byte* p, auto value) { std::memcpy(p, &value, sizeof value); };
    const bool super = w.super_group != 0;
    std::byte* p = panel + k / step_values(F, w.group, super) * step_bytes(F, w.panel, w.group, w.has_minimum, super);
    for (int at = 0; at < count; at += 32) {
        if (at % (super ? kSuper : w.group) == 0) {
            put(p + 2 * column, chunk.scale[at / w.group]);
            if (w.has_minimum) put(p + 2 * (w.panel + column), chunk.minimum[at / w.group]);
            p += w.panel * (w.has_minimum ? 4 : 2);
        }
        for (int group = at / w.group; super && group < (at + 32) / w.group; ++group) {
            const int factor = chunk.factor[group], minimum = chunk.minimum_factor[group];
            if (has_nibble_factors(F)) {
                put(p + column, static_cast<uint8_t>(factor | minimum << 4));
            } else {
                put(p + column, static_cast<int8_t>(factor));
                if (w.has_minimum) put(p + w.panel + column, static_cast<int8_t>(minimum));
            }
            p += factor_bytes(F, w.panel, w.has_minimum);
        }
        write_quads<low_bits(F), high_bits(F)>(chunk.q + at, paired(F, paired_halves), w.panel, p + 4 * column);
        p += quad_bytes(F, w.panel, 32);
    }
}

auto writer_of(Format format) {
    switch (format) {
        case Format::i2:
            return write_integers<Format::i2>;
        case Format::i3:
            return write_integers<Format::i3>;
        case Format::i4:
            return write_integers<Format::i4>;
        case Format::i5:
            return write_integers<Format::i5>;
        case Format::i6:
            return write_integers<Format::i6>;
        case Format::i8:
            return write_integers<Format::i8>;
        default:
            throw std::logic_error("Only formats of integers are written so.");
    }
}

// Writes values [k, k + count) of all columns of a float panel; rows of `values` are kSuper apart. False: a finite value became infinite.
bool write_floats(const PackedWeight& w, std::byte* panel, int columns, int64_t k, int count, const float* values) {
    bool held = true;
    if (w.format == Format::f32) {
        float* out = reinterpret_cast<float*>(panel) + k * w.panel;
        for (int i = 0; i < count; ++i)
            for (int c = 0; c < columns; ++c) out[int64_t{i} * w.panel + c] = values[c * kSuper + i];
    } else if (w.format == Format::f16) {
        f16* out = reinterpret_cast<f16*>(panel) + k * w.panel;
        for (int i = 0; i < count; ++i)
            for (int c = 0; c < columns; ++c) {
                f16 half = f32_to_f16(values[c * kSuper + i]);
                held &= (half & 0x7fffu) != 0x7c00u || std::isinf(values[c * kSuper + i]);
                out[int64_t{i} * w.panel + c] = half;
            }
    } else {
        bf16* out = reinterpret_cast<bf16*>(panel);
        for (int i = 0; i < count; ++i)
            for (int c = 0; c < columns; ++c) out[((k + i) / 2 * w.panel + c) * 2 + (k + i) % 2] = f32_to_bf16(values[c * kSuper + i]);
    }
    return held;
}

// A float as the nearest integer, halves to even; |value| < 2^22.
int32_t round_even(float value) { return static_cast<int32_t>(f32_to_bits(value + 12582912.0f) - 0x4b400000u); }

bool is_finite(f16 half) { return (half & 0x7c00u) != 0x7c00u; }

// The values [k, k + count) of a column as integers, each span under its largest value: i8s. False: a value is not finite.
bool write_spans(const PackedWeight& weight, std::byte* panel, int column, int64_t k, int count, const float* values) {
    const PackedWeight w = weight;  // a copy, as in write_integers
    const int64_t bytes = step_bytes(w.format, w.panel, 0, false, false);
    float check = 0.0f;
    for (int first = 0; first < count; first += kActSpan) {
        const int end = std::min(count, first + kActSpan);
        float largest = 0.0f;
        for (int i = first; i < end; ++i) {
            largest = std::max(largest, std::fabs(values[i]));
            check += values[i] * 0.0f;
        }
        const float scale = largest / 127.0f;
        const float inverse = scale > 0.0f && std::isfinite(1.0f / scale) ? 1.0f / scale : 0.0f;
        std::byte* p = panel + (k + first) / kActSpan * bytes;
        std::memcpy(p + 4 * column, &scale, 4);
        p += 4 * w.panel;
        for (int quad = 0; quad < kActSpan / 4; ++quad) {
            uint32_t four = 0;
            for (int j = 0; j < 4; ++j) {
                const int i = first + 4 * quad + j;
                const int32_t q = i < end ? round_even(values[i] * inverse) : 0;
                four |= static_cast<uint32_t>(q + kSpanZero) << (8 * j);
            }
            std::memcpy(p + (quad * w.panel + column) * 4, &four, 4);
        }
    }
    return check == 0.0f;
}

// `count` values as 4 bits: rounded to the nearest multiple of a scale above a minimum, both float16. Of a few scales, from the one that
// spans all values to ones that leave out the outermost, each with the scale and the minimum of least squares for the integers that it
// gives, the one with the least squared error. False: a value is not finite, or its scale or minimum beyond float16.
bool quantize_nibbles(const float* x, int count, uint8_t* q, f16& scale, f16& minimum) {
    float low = x[0], high = x[0], check = 0.0f, sum_x = 0.0f;
    for (int i = 0; i < count; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        check += x[i] * 0.0f;
        sum_x += x[i];
    }
    if (check != 0.0f) return false;
    float least = std::numeric_limits<float>::infinity();
    // Twice a try: with the scale and minimum that it begins with, and then with those that fit its integers best.
    float try_scale = 0.0f, try_minimum = 0.0f;
    for (int t = 0; t < 2 * kScaleTries && least > 0.0f; ++t) {
        if (t % 2 == 0) {
            const float margin = (high - low) * 0.025f * static_cast<float>(t / 2);
            try_minimum = low + margin;
            try_scale = (high - low - 2.0f * margin) / kNibbles;
        }
        const f16 half_scale = f32_to_f16(try_scale), half_minimum = f32_to_f16(try_minimum);
        if (!is_finite(half_scale) || !is_finite(half_minimum)) return false;
        const float s = f16_to_f32(half_scale), m = f16_to_f32(half_minimum);
        const float inverse = s > 0.0f ? 1.0f / s : 0.0f;
        uint8_t tried[128];
        float error = 0.0f, sum_q = 0.0f, sum_qq = 0.0f, sum_qx = 0.0f;
        for (int i = 0; i < count; ++i) {
            const auto value = static_cast<float>(round_even(std::min(std::max((x[i] - m) * inverse, 0.0f), float{kNibbles})));
            const float difference = s * value + m - x[i];
            error += difference * difference;
            sum_q += value;
            sum_qq += value * value;
            sum_qx += value * x[i];
            tried[i] = static_cast<uint8_t>(value);
        }
        if (error < least) {
            least = error;
            scale = half_scale;
            minimum = half_minimum;
            std::memcpy(q, tried, static_cast<size_t>(count));
        }
        const float n = static_cast<float>(count), spread = n * sum_qq - sum_q * sum_q;
        if (spread > 0.0f) {
            try_scale = (n * sum_qx - sum_q * sum_x) / spread;
            try_minimum = (sum_x - try_scale * sum_q) / n;
        }
    }
    return true;
}

// Whether a job's values are quantised anew, and not as their file has them.
bool is_new(const PackJob& job) { return job.format == Format::i8s || job.group != 0; }

PackedWeight describe(const KernelTable* table, const PackJob& job) {
    const auto& [format, source, data, bytes, n, k, group] = job;
    const SourceType& type = type_of(source);
    PackedWeight w{};
    w.format = format;
    w.n = static_cast<int32_t>(n);
    w.k = static_cast<int32_t>(k);
    w.panel = table->panel_of(format);
    if (format == Format::i8s) {
        w.zero = kSpanZero;
    } else if (group) {
        w.group = group;
        w.has_minimum = true;
    } else if (!is_float(format)) {
        w.group = type.group;
        w.super_group = type.super;
        w.zero = type.zero;
        w.has_minimum = type.minimum;
    }
    w.panel_bytes = steps_of(w) * step_bytes(format, w.panel, w.group, w.has_minimum, w.super_group != 0);
    w.bytes = (n + w.panel - 1) / w.panel * w.panel_bytes;
    return w;
}

void check(const KernelTable* table, const PackJob& job) {
    const auto& [format, source, data, bytes, n, k, group] = job;
    const SourceType& type = type_of(source);
    if (group != 0 && (format != Format::i4 || (group != 32 && group != 64 && group != 128) || k % group != 0))
        throw std::invalid_argument("A group is 32, 64 or 128 values of i4 and divides the columns: not " + std::to_string(group) + " of " +
                                    name_of(format) + " with " + std::to_string(k) + " columns.");
    if (!is_float(format) && !is_new(job) && format != type.format)
        throw std::invalid_argument(std::string(type.name) + " cannot be packed as " + name_of(format) + ", only as " +
                                    name_of(type.format) + (is_float(type.format) ? " or another float format" : ", f32, f16 or bf16") +
                                    ", or quantised as i8s or as i4 with a group.");
    if (table->panel_of(format) <= 0) throw std::invalid_argument(std::string(table->name) + " has no kernel for " + name_of(format) + ".");
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (n < 1 || k < 1 || n > kMost || k > kMost)
        throw std::invalid_argument("A weight must have between 1 and 2147483647 rows and columns, not " + std::to_string(n) + " x " +
                                    std::to_string(k) + ".");
    if (k % type.values != 0)
        throw std::invalid_argument("The " + std::to_string(k) + " columns of a " + type.name + " weight must be a multiple of " +
                                    std::to_string(type.values) + ".");
    const int64_t row_bytes = k / type.values * type.bytes;
    if (bytes / row_bytes != n || bytes % row_bytes != 0)
        throw std::invalid_argument("A " + std::string(type.name) + " weight of " + std::to_string(n) + " x " + std::to_string(k) +
                                    " has " + std::to_string(n) + " rows of " + std::to_string(row_bytes) + " bytes; the data has " +
                                    std::to_string(bytes) + " bytes.");
}

// False: a value is not held by the format. `floats` is room for values, kept from call to call.
bool pack_panel(const PackedWeight& w, bool paired_halves, const PackJob& job, int64_t panel, std::vector<float>& floats) {
    const SourceType& type = type_of(job.source);
    const int64_t row_bytes = job.k / type.values * type.bytes;
    const int columns = static_cast<int>(std::min<int64_t>(w.panel, job.n - panel * w.panel));
    const std::byte* first = job.data + panel * w.panel * row_bytes;
    std::byte* out = w.data + panel * w.panel_bytes;
    Chunk chunk;
    bool held = true;
    floats.resize(static_cast<size_t>(w.panel) * kSuper);
    for (int64_t at = 0; at < job.k; at += kSuper) {
        const int count = static_cast<int>(std::min<int64_t>(kSuper, job.k - at));
        for (int column = 0; column < columns; ++column) {
            const std::byte* p = first + column * row_bytes + at / type.values * type.bytes;
            if (is_float(w.format)) {
                read_floats(job.source, p, count, floats.data() + column * kSuper);
            } else if (is_new(job)) {
                read_floats(job.source, p, count, floats.data());
                if (w.format == Format::i8s) {
                    held &= write_spans(w, out, column, at, count, floats.data());
                    continue;
                }
                for (int group = 0; group < count / w.group; ++group)
                    held &= quantize_nibbles(floats.data() + group * w.group, w.group, chunk.q + group * w.group, chunk.scale[group],
                                             chunk.minimum[group]);
                writer_of(w.format)(w, paired_halves, out, column, at, count, chunk);
            } else {
                read_chunk(job.source, p, count, chunk);
                writer_of(w.format)(w, paired_halves, out, column, at, count, chunk);
            }
        }
        if (is_float(w.format)) held &= write_floats(w, out, columns, at, count, floats.data());
    }
    return held;
}

}  // namespace

Source source_of(const std::string& name) {
    std::string known;
    for (int i = 0; i < static_cast<int>(std::size(kSources)); ++i) {
        if (name == kSources[i].name) return static_cast<Source>(i);
        known += (i ? ", " : "") + std::string(kSources[i].name);
    }
    throw std::invalid_argument("Unknown tensor type '" + name + "'; pack() reads " + known + ".");
}

Format format_of(const std::string& name) {
    std::string known;
    for (int i = 0; i < static_cast<int>(std::size(kFormats)); ++i) {
        if (name == kFormats[i]) return static_cast<Format>(i);
        known += (i ? ", " : "") + std::string(kFormats[i]);
    }
    throw std::invalid_argument("Unknown packed format '" + name + "'; there are " + known + ".");
}

const char* name_of(Format format) { return kFormats[static_cast<int>(format)]; }

Format default_format(Source source) { return type_of(source).format; }

std::vector<Range> panels_of(std::span<const PackedWeight* const> weights, std::optional<Act> product, int number, int shares) {
    std::vector<Range> panels;
    if (product) {
        for (const PackedWeight* w : weights) {
            const int64_t columns = gated_columns(w->panel, *product), unit = columns / w->panel;
            const auto [from, to] = cuts_of((w->n + columns - 1) / columns, 1, number, shares);
            panels.push_back({from.unit * unit, std::min(to.unit * unit, w->bytes / w->panel_bytes)});
        }
        return panels;
    }
    int64_t total = 0, start = 0;
    for (const PackedWeight* w : weights) total += w->bytes;
    for (const PackedWeight* w : weights) {
        const auto [from, to] = cuts_of(*w, start, share(total, number, shares), 1);
        panels.push_back({from.unit, to.unit});
        start += w->bytes;
    }
    return panels;
}

std::vector<PackedWeightOwner> pack(const KernelTable* table, ThreadPool& pool, std::span<const PackOp> ops) {
    constexpr int64_t kLine = 64;
    std::vector<const PackJob*> jobs;
    std::vector<PackedWeightOwner> owners;
    int64_t bytes = 0;
    for (const PackOp& op : ops)
        for (const PackJob& job : op.jobs) {
            check(table, job);
            jobs.push_back(&job);
            const PackedWeight& w = owners.emplace_back(describe(table, job), nullptr, table).packed;
            bytes += (w.bytes + kLine - 1) / kLine * kLine;
        }
    auto memory = std::make_shared<Memory>(bytes);
    std::byte* at = memory->data();
    for (PackedWeightOwner& owner : owners) {
        owner.memory = memory;
        owner.packed.data = at;
        at += (owner.packed.bytes + kLine - 1) / kLine * kLine;
    }
    const auto threads = static_cast<size_t>(pool.threads());
    std::vector<Range> parts;  // of the jobs, by threads: the panels that each will read
    for (size_t thread = 0; thread < threads; ++thread)
        for (size_t op = 0, first = 0; op < ops.size(); first += ops[op++].jobs.size()) {
            std::vector<const PackedWeight*> weights;
            for (size_t i = 0; i < ops[op].jobs.size(); ++i) weights.push_back(&owners[first + i].packed);
            for (Range part : panels_of(weights, ops[op].product, static_cast<int>(thread), pool.threads())) parts.push_back(part);
        }
    // A thread takes its own part, one by one, so that the pages are near it, and then what others have left: while the model is loaded
    // other work has a core, and a fixed share would wait for the thread behind it.
    std::vector<std::atomic<int64_t>> taken(parts.size());  // panels of each
    std::atomic<size_t> unheld{jobs.size()};                // the first job with a value that its format does not hold
    pool.run([&](int thread, int) {
        std::vector<float> floats;
        for (size_t i = 0; i < parts.size(); ++i) {
            const size_t part = (static_cast<size_t>(thread) * jobs.size() + i) % parts.size(), job = part % jobs.size();
            for (int64_t panel; (panel = parts[part].begin + taken[part].fetch_add(1, std::memory_order_relaxed)) < parts[part].end;) {
                if (pack_panel(owners[job].packed, table->paired_halves, *jobs[job], panel, floats)) continue;
                for (size_t first = unheld.load(); job < first && !unheld.compare_exchange_weak(first, job);) {}
            }
        }
    });
    if (unheld < jobs.size()) {
        const PackJob& job = *jobs[unheld];
        throw std::invalid_argument("A weight of " + std::to_string(job.n) + " x " + std::to_string(job.k) + " has values " +
                                    (job.format == Format::i8s ? "that are not finite: it cannot be quantised."
                                     : job.format == Format::i4
                                         ? "that are not finite, or above 65504, the largest of f16: it cannot be quantised."
                                         : "above 65504, the largest of f16; pack it as bf16 or f32."));
    }
    return owners;
}

}  // namespace octavo
