// The kernel tables compiled in, best first, and which of them this machine can run.
#pragma once

#include <string>
#include <vector>

#include "ops.h"

namespace octavo {

struct IsaLevel {
    const KernelTable* table;
    bool supported;       // by the processor and the operating system
    std::string missing;  // what is not, in words
};

const std::vector<IsaLevel>& isa_levels();

// The best supported table, or the named one; throws std::invalid_argument with the names that would do.
const KernelTable* select_isa(const std::string& name);

}  // namespace octavo
