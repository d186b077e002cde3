#include "bind.h"

namespace octavo {

void bind_weights(nb::module_&) {}

}  // namespace octavo
