// Weights change layout once, at load: from the blocks of their file to the panels of the linear kernels.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory.h"
#include "ops.h"
#include "thread_pool.h"

namespace octavo {

// The tensor types of files that pack() reads.
enum class Source : uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k };

// A tensor of a file: `bytes` bytes at `data`, a row-major [n, k] matrix of type `source`; and the format to pack it as. `group`: 32, 64 or
// 128 values that share a scale and a minimum where it is to be quantised as i4, else 0.
struct PackJob {
    Format format;
    Source source;
    const std::byte* data;
    int64_t bytes, n, k;
    int group = 0;
};

// Matrices that one op reads together. `product`: those are gate and up of gated_linear, which prepares their product as this form.
struct PackOp {
    std::vector<PackJob> jobs;
    std::optional<Act> product = {};
};

// A packed weight with its memory, which it shares with those packed by the same call, and the level whose kernels it was packed for.
struct PackedWeightOwner {
    PackedWeight packed;
    std::shared_ptr<Memory> memory;
    const KernelTable* table;
};

Source source_of(const std::string& name);
Format format_of(const std::string& name);
const char* name_of(Format format);

// The format that keeps every bit of a source.
Format default_format(Source source);

// The panels of each of an op's weights that a share of it reads.
std::vector<Range> panels_of(std::span<const PackedWeight* const> weights, std::optional<Act> product, int number, int shares);

// Packs the jobs of each op, in one run of the pool and into one mapping: one for each is rounded up to whole huge pages, which took 360 MB
// more than the 96 MB of SmolLM2-135M. Float sources go to any float format, rounded to nearest even (a finite value that float16 cannot
// hold is refused); quantised ones to their default format, or dequantised to a float format. Any source is quantised as i8s, or as i4
// with a group, by rounding its values to nearest; what is not finite is then refused. Throws std::invalid_argument that names the numbers.
std::vector<PackedWeightOwner> pack(const KernelTable* table, ThreadPool& pool, std::span<const PackOp> ops);

}  // namespace octavo
