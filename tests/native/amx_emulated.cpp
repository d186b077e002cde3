// The linear kernels of the table amx for any processor: its tiles as plain arrays, its vectors those of the scalar level, which have the
// same shape.
#define ISA amx_emulated
#define OCTAVO_HAS_DPBF16 1
#define OCTAVO_HAS_AMX 1
#include "isa/vec_scalar.h"
#include "isa/pairs_scalar.h"
#include "isa/dot_scalar.h"

#include "emulated_tiles.h"

namespace octavo::ISA {
static inline void dot_bf16(vf&, vi, int32_t) {}  // tiles take its place
}  // namespace octavo::ISA

#include "kernels/math.inl"

#include "kernels/elementwise.inl"
#include "kernels/linear.inl"

namespace octavo::ISA {

extern const KernelTable table;
const KernelTable table = {
    .name = "amx_emulated",
    .lanes = W,
    .paired_halves = kPairedHalves,
    .act_of = act_of,
    .act_bytes = act_bytes,
    .quantize = quantize,
    .linear = linear,
    .gated_linear = gated_linear,
    .embed = embed,
    .panel_of = panel_of,
};

}  // namespace octavo::ISA
