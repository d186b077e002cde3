// The tile instructions of AMX that linear layers use. Assembler, as GCC's intrinsics say nothing of the memory that they read.
#pragma once

#include <cstdint>

namespace octavo::ISA {
namespace {

struct TileConfig {  // as ldtilecfg reads it
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

static inline void tile_config(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
static inline void tile_release() { asm volatile("tilerelease"); }

template <int T>
static inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
static inline void tile_load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
static inline void tile_store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
// Sum += A . B: rows of pairs of bf16.
template <int Sum, int A, int B>
static inline void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}
// Sum += A . B: rows of quads of bytes, those of A signed, those of B not.
template <int Sum, int A, int B>
static inline void tile_dot_s8u8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

}  // namespace
}  // namespace octavo::ISA
