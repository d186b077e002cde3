// The tile instructions of isa/tiles_amx.h on plain arrays, by the operations that Intel's manual gives for each. What raises an exception
// on a processor ends the program.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "types.h"

namespace octavo::ISA {
namespace {

struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

constexpr int kTiles = 8, kMostRows = 16, kMostBytes = 64;
TileConfig configured;
bool in_use = false;
uint8_t tiles[kTiles][kMostRows][kMostBytes];

static inline void require(bool holds) {
    if (!holds) std::abort();
}
template <int T>
static inline int rows_of() {
    require(in_use && T < kTiles && configured.rows[T] > 0);
    return configured.rows[T];
}
template <int T>
static inline int bytes_of() {
    return configured.row_bytes[T];
}

static inline void tile_config(const TileConfig& config) {
    require(config.palette == 1 && config.start_row == 0);
    for (int i = 0; i < 16; ++i) {
        require(config.rows[i] <= (i < kTiles ? kMostRows : 0) && config.row_bytes[i] <= (i < kTiles ? kMostBytes : 0));
        require((config.rows[i] == 0) == (config.row_bytes[i] == 0));
    }
    configured = config;
    in_use = true;
    std::memset(tiles, 0, sizeof tiles);
}
static inline void tile_release() { in_use = false; }

template <int T>
static inline void tile_zero() {
    rows_of<T>();
    std::memset(tiles[T], 0, sizeof tiles[T]);
}
template <int T>
static inline void tile_load(const void* p, int64_t stride) {
    const int rows = rows_of<T>();
    std::memset(tiles[T], 0, sizeof tiles[T]);
    for (int r = 0; r < rows; ++r)
        std::memcpy(tiles[T][r], static_cast<const uint8_t*>(p) + r * stride, static_cast<size_t>(bytes_of<T>()));
}
template <int T>
static inline void tile_store(void* p, int64_t stride) {
    for (int r = 0; r < rows_of<T>(); ++r)
        std::memcpy(static_cast<uint8_t*>(p) + r * stride, tiles[T][r], static_cast<size_t>(bytes_of<T>()));
}

template <class Value>
static inline Value value_at(int tile, int row, int i) {
    Value value;
    std::memcpy(&value, tiles[tile][row] + static_cast<size_t>(i) * sizeof value, sizeof value);
    return value;
}
template <class Value>
static inline void put(int tile, int row, int i, Value value) {
    std::memcpy(tiles[tile][row] + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
}

// Four bytes of K are a row of the right operand.
template <int Sum, int A, int B>
static inline void require_shapes() {
    require(Sum != A && Sum != B && A != B);
    require(rows_of<Sum>() == rows_of<A>() && bytes_of<A>() == 4 * rows_of<B>() && bytes_of<Sum>() == bytes_of<B>());
}

// Subnormals, in and out, are zero.
static inline float normal(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

template <int Sum, int A, int B>
static inline void tile_dot_bf16() {
    require_shapes<Sum, A, B>();
    for (int m = 0; m < rows_of<Sum>(); ++m)
        for (int n = 0; n < bytes_of<Sum>() / 4; ++n) {
            float sums[2] = {0.0f, 0.0f};
            for (int k = 0; k < rows_of<B>(); ++k)
                for (int i = 0; i < 2; ++i) {
                    const float a = bf16_to_f32(value_at<bf16>(A, m, 2 * k + i)), b = bf16_to_f32(value_at<bf16>(B, k, 2 * n + i));
                    sums[i] = normal(std::fma(normal(a), normal(b), sums[i]));
                }
            put(Sum, m, n, normal(normal(value_at<float>(Sum, m, n)) + normal(sums[0] + sums[1])));
        }
}

template <int Sum, int A, int B>
static inline void tile_dot_s8u8() {
    require_shapes<Sum, A, B>();
    for (int m = 0; m < rows_of<Sum>(); ++m)
        for (int n = 0; n < bytes_of<Sum>() / 4; ++n) {
            int32_t sum = value_at<int32_t>(Sum, m, n);
            for (int k = 0; k < rows_of<B>(); ++k)
                for (int i = 0; i < 4; ++i) sum += value_at<int8_t>(A, m, 4 * k + i) * value_at<uint8_t>(B, k, 4 * n + i);
            put(Sum, m, n, sum);
        }
}

}  // namespace
}  // namespace octavo::ISA
