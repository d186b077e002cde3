#include "bind.h"

namespace octavo {

void bind_program(nb::module_&) {}

}  // namespace octavo
