// The sampler's inputs and outputs, one row per output row.
#pragma once

#include "types.h"

namespace octavo {

struct SampleArgs {
    int rows;
};

}  // namespace octavo
