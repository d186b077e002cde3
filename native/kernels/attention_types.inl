// The types that keys and values are kept in, and how attention reads and writes them.
#include "../plan.h"

namespace octavo::ISA {

namespace {  // what a template's members export is weak

// The cache's types: what is kept (element) and what it is multiplied as (operand); how the lanes of two neighbours - two dimensions of
// keys, two tokens of values - are read, as float32 or as pairs of bf16; and what they are widened to, exactly, where rows are many.
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
    static constexpr bool paired = true;
    static pairs_bf16 pairs(const bf16* p, int64_t) { return load_pairs(p); }
    static void put(bf16* p, int64_t, vf even, vf odd) { store_pairs(p, join_pairs(even, odd)); }
#else
    using operand = float;
    using wide = TypeF32;
    static constexpr bool paired = false;
#endif
};
// Types of 8 bits: bf16 holds each of their values, so from here on the arithmetic is that of bf16.
template <class Type, class Element>
struct TypeByte {
    using element = Element;
    using operand = TypeBf16::operand;
    using wide = TypeBf16::wide;
    static constexpr bool paired = TypeBf16::paired;
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
// In units of a scale for each token, which meets its score, and its p before p is rounded.
struct TypeI8 : TypeByte<TypeI8, int8_t> {
    static vf load(const int8_t* p) { return load_i8(p); }
    static void write(int8_t* p, vf a) {
        int32_t lanes[W];
        store_i(lanes, to_i32(a));
        for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(lanes[i]);
    }
};

}  // namespace

// Whether the scales of its tokens stand behind a tile.
template <class T>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<TypeI8> = true;

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
    }
}

}  // namespace octavo::ISA
