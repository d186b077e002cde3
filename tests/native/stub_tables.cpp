// Tables with nothing but a name, for programs that ask dispatch.cpp without having all tables linked: those that are win.
#include "ops.h"

static constexpr octavo::KernelTable with_name(const char* name) {
    octavo::KernelTable table{};
    table.name = name;
    return table;
}

#define STUB(isa)                                         \
    namespace octavo::isa {                               \
    extern __attribute__((weak)) const KernelTable table; \
    const KernelTable table = with_name(#isa);            \
    }

STUB(scalar)
#if defined(__x86_64__)
STUB(amx)
STUB(avx512_bf16)
STUB(avx512)
STUB(avx2_vnni)
STUB(avx2)
#elif defined(__aarch64__)
STUB(neon_i8mm)
STUB(neon)
#endif
