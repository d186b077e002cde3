// What the machine can do at most, measured in the process that judges the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Reads every byte of [data, data + bytes); returns something that depends on all of them.
uint64_t probe_read(const std::byte* data, int64_t bytes);

// Runs `rounds` rounds of independent multiply-adds on float32 vectors and returns the operations done (two per lane and instruction).
// `lanes`: 16 or 8, as the level has them; else scalar code.
double probe_fma(int lanes, int64_t rounds);

}  // namespace octavo
