// The linear kernels of the table amx for any processor: its tiles as plain arrays, its vectors those of the scalar level, which have the
// same shape.
#define ISA amx_emulated
#define ISA_NAME "amx_emulated"
#define OCTAVO_HAS_DPBF16 1
#define OCTAVO_HAS_AMX 1
#include "isa/vec_scalar.h"
#include "isa/pairs_scalar.h"
#include "isa/dot_scalar.h"

#include "emulated_tiles.h"

namespace octavo::ISA {
static inline void dot_bf16(vf&, vi, int32_t) {}  // tiles take its place
}  // namespace octavo::ISA

#include "linear_table.inl"
