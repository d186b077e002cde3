// What the machine can do at most, measured in the process that judges the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops.h"

namespace octavo {

// Reads every byte of [data, data + bytes); returns something that depends on all of them.
uint64_t probe_read(const std::byte* data, int64_t bytes);

// Runs `rounds` rounds of independent multiply-adds in registers, with the instructions that `level` has for activations prepared as `act`,
// and returns the operations done, two for each multiply-add. Levels without any of their own: scalar float32.
double probe_dot(const std::string& level, Act act, int64_t rounds);

}  // namespace octavo
