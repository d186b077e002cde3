// A table of linear kernels only: what differs from the level that a table with emulated instructions is compiled for.
#include "kernels/math.inl"

#include "kernels/elementwise.inl"
#include "kernels/linear.inl"

namespace octavo::ISA {

extern const KernelTable table;
const KernelTable table = {
    .name = ISA_NAME,
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
