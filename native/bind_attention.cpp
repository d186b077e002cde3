#include "bind.h"

namespace octavo {

void bind_attention(nb::module_&) {}

}  // namespace octavo
