#include "bind.h"

namespace octavo {

void bind_sampler(nb::module_&) {}

}  // namespace octavo
