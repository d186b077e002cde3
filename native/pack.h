// Weights change layout once, at load: from the blocks of their file to the panels of the linear kernels.
#pragma once

#include <string>
#include <vector>

#include "memory.h"
#include "ops.h"
#include "thread_pool.h"

namespace octavo {

// The tensor types of files that pack() reads.
enum class Source : uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

// A packed weight with its memory, and the level whose kernels it was packed for.
struct PackedWeightOwner {
    PackedWeight packed;
    Memory memory;
    const KernelTable* table;
};

Source source_of(const std::string& name);
Format format_of(const std::string& name);
const char* name_of(Format format);

// The format that keeps every bit of a source.
Format default_format(Source source);

// Packs `bytes` bytes at `data`, a row-major [n, k] tensor of type `source`. Float sources go to any float format, rounded to nearest even
// (a finite value that float16 cannot hold is refused); quantised ones to their default format, or dequantised to a float format.
// Throws std::invalid_argument that names the numbers.
PackedWeightOwner pack(const KernelTable* table, ThreadPool& pool, Format format, Source source, const std::byte* data, int64_t bytes,
                       int64_t n, int64_t k);

}  // namespace octavo
