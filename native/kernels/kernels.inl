// All kernels of one ISA, and its table: the one symbol that an ISA file exports.
#include "../ops.h"
#include "../sampler.h"

namespace octavo::ISA {

template <int N>
struct Constant {
    static constexpr int value = N;
};

}  // namespace octavo::ISA

#include "math.inl"

#include "attention.inl"
#include "elementwise.inl"
#include "linear.inl"
#include "sampler.inl"

namespace octavo::ISA {

extern const KernelTable table;
const KernelTable table = {
    ISA_NAME,        W,           kPairedHalves, kFastestAsI16, act_of,   act_bytes,   quantize, linear, gated_linear,      embed,
    rms_norm,        rope_angles, rope,          activation,    add_rows, select_rows, softcap,  store,  attention_scratch, attention,
    attention_merge, sample,      panel_of,      math,
};

}  // namespace octavo::ISA
