// The types that keys and values are kept in, and how attention reads and writes them.
#include <type_traits>

#include "../plan.h"

namespace octavo::ISA {

namespace {  // what a template's members export is weak

// The cache's types: what is kept (element) and what it is multiplied as (operand); how the lanes of two neighbours - two dimensions of
// keys, two tokens of values - are read, as float32, or as pairs of bf16 or of integers; and what they are widened to, exactly, where rows
// are many.
struct TypeF32 {
    using element = float;
    using operand = float;
    using wide = TypeF32;
    static constexpr bool paired = false;
    static constexpr int step = 1;  // elements from one lane to the next
    static vf even(const float* p, int64_t) { return load(p); }
    static vf odd(const float* p, int64_t stride) { return load(p + stride); }
    static void put(float* p, int64_t stride, vf even, vf odd) { ISA::store(p, even), ISA::store(p + stride, odd); }
    static void write(float* p, vf a) { ISA::store(p, a); }
};
constexpr float kLargestF16 = 65504.0f;
struct TypeF16 {
    using element = f16;
    using operand = float;
    using wide = TypeF32;
    static constexpr bool paired = false;
    static constexpr int step = 2;
    static vf even(const f16* p, int64_t) { return even_f16(p); }
    static vf odd(const f16* p, int64_t) { return odd_f16(p); }
    // The largest value for what is beyond it, as of fp8; NaN, the second argument, stays NaN.
    static void write(f16* p, vf a) { store_f16(p, min(set1(kLargestF16), max(set1(-kLargestF16), a))); }
};
struct TypeBf16 {
    using element = bf16;
    static constexpr int step = 2;
    static vf even(const bf16* p, int64_t) { return even_bf16(p); }
    static vf odd(const bf16* p, int64_t) { return odd_bf16(p); }
    static void write(bf16* p, vf a) { store_bf16(p, a); }
#if OCTAVO_PAIRED_BF16
    using operand = bf16;
    using wide = TypeBf16;
    using pair = pairs_bf16;
    static constexpr bool paired = true;
    static pairs_bf16 pairs(const bf16* p, int64_t) { return load_pairs(p); }
    static void put(bf16* p, int64_t, vf even, vf odd) { store_pairs(p, join_pairs(even, odd)); }
#else
    using operand = float;
    using wide = TypeF32;
    static constexpr bool paired = false;
#endif
};
// Floats of 8 bits: bf16 holds each of their values, so from here on the arithmetic is that of bf16.
template <class Type, class Element>
struct TypeByte {
    using element = Element;
    using operand = TypeBf16::operand;
    using wide = TypeBf16::wide;
    static constexpr bool paired = TypeBf16::paired;
#if OCTAVO_PAIRED_BF16
    using pair = pairs_bf16;
#endif
    static constexpr int step = 1;
    static vf even(const Element* p, int64_t) { return Type::load(p); }
    static vf odd(const Element* p, int64_t stride) { return Type::load(p + stride); }
#if OCTAVO_PAIRED_BF16
    static pairs_bf16 pairs(const Element* p, int64_t stride) { return join_pairs(Type::load(p), Type::load(p + stride)); }
#endif
    static void write(Element* p, vf a) {
        float lanes[W];
        ISA::store(lanes, a);
        for (int i = 0; i < W; ++i) p[i] = Type::round(lanes[i]);
    }
};
struct TypeE4M3 : TypeByte<TypeE4M3, uint8_t> {
    static vf load(const uint8_t* p) { return load_e4m3(p); }
    static uint8_t round(float x) { return f32_to_e4m3(x); }
};
struct TypeE5M2 : TypeByte<TypeE5M2, uint8_t> {
    static vf load(const uint8_t* p) { return load_e5m2(p); }
    static uint8_t round(float x) { return f32_to_e5m2(x); }
};
// Integers in units of a scale for each token, multiplied as such, exactly: attention_integers.inl.
struct TypeI16 {
    using element = int16_t;
    using operand = int16_t;
    using wide = TypeI16;
    using pair = vi;
    static constexpr bool paired = true;
    static constexpr int step = 2;
    static constexpr int largest = kLargestI16;
    static vi pairs(const int16_t* p, int64_t) { return load_i16(p); }
    static void write(int16_t* p, vf a) { store_i16(p, to_i32(a)); }
};
struct TypeI8 : TypeI16 {
    using element = int8_t;
    static constexpr int largest = 127;
    static vi pairs(const int8_t* p, int64_t) { return widen_i8(p); }
    static void write(int8_t* p, vf a) {
        int16_t lanes[W];
        store_i16(lanes, to_i32(a));
        for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(lanes[i]);
    }
};
static inline vi broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return set1_i(pair);
}
static inline vi dot_pairs(vi sum, vi a, vi b) { return add_dot_s16(sum, a, b); }

}  // namespace

// Whether the scales of its tokens stand behind a tile.
template <class T>
constexpr bool kScaled = std::is_base_of_v<TypeI16, T>;

// What keys and values are in units of: q, and in the end o, are multiplied by it, a power of two, which rounds nothing.
static inline float unit_of(CacheType type) { return type == CacheType::e4m3 ? kE4M3Unit : 1.0f; }

template <class Function>
static inline void with_type(CacheType type, Function function) {
    switch (type) {
        case CacheType::f32:
            return function(TypeF32{});
        case CacheType::f16:
            return function(TypeF16{});
        case CacheType::bf16:
            return function(TypeBf16{});
        case CacheType::e4m3:
            return function(TypeE4M3{});
        case CacheType::e5m2:
            return function(TypeE5M2{});
        case CacheType::i8:
            return function(TypeI8{});
        case CacheType::i16:
            return function(TypeI16{});
    }
}

// Values of up to `largest` as integers of up to `most`: what an integer stands for, and how many are 1.
struct Unit {
    float unit, inverse;
    Unit(float largest, float most) : unit(0.0f), inverse(0.0f) {
        if (largest < most * 0x1p-126f) return;  // the inverse would be beyond 2^126
        unit = largest / most, inverse = most / largest;
    }
};
// `size` values in the cache's type; returns what they are to be multiplied by.
template <class T, int kLargest>
static inline float round_scaled(const float* x, int size, typename T::element* out) {
    vf top = zero(), spoiled = zero();  // max() passes NaN over; NaN or infinity times 0 is NaN
    for (int d = 0; d < size; d += W) {
        const vf a = load_n(x + d, size - d);
        top = max(abs(a), top);
        spoiled = add(spoiled, mul(a, zero()));
    }
    constexpr auto kMost = static_cast<float>(kLargest);
    const Unit of(reduce_max(top), kMost);
    for (int d = 0; d < size; d += W)
        T::write(out + d, max(min(mul(load_n(x + d, size - d), set1(of.inverse)), set1(kMost)), set1(-kMost)));
    return of.unit + reduce_add(spoiled);
}
template <class T>
static inline float round_head(const float* x, int size, typename T::element* out) {
    if constexpr (kScaled<T>) return round_scaled<T, T::largest>(x, size, out);
    for (int d = 0; d < size; d += W) T::write(out + d, load_n(x + d, size - d));
    return 1.0f;
}

}  // namespace octavo::ISA
