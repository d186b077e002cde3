// Compares the kernel table OCTAVO_ISA with the scalar one on seeded inputs: isa_check [--emulated] [GROUP]. Exit status: 0 when all checks
// hold, 1 when one does not, 77 when this machine lacks the instructions. --emulated tries all the same, and spares what the emulator gets
// wrong.
#include "isa_check.h"

#include "dispatch.h"

// OCTAVO_NEEDS: what a table is compiled for, some of whose instructions are emulated.
#ifndef OCTAVO_NEEDS
#define OCTAVO_NEEDS OCTAVO_ISA
#endif

namespace octavo {
namespace scalar {
extern const KernelTable table;
}
namespace OCTAVO_ISA {
extern const KernelTable table;
}
namespace OCTAVO_NEEDS {
extern const KernelTable table;
}
}  // namespace octavo

namespace {

bool can_run() {
    for (const octavo::IsaLevel& level : octavo::isa_levels())
        if (level.table == &octavo::OCTAVO_NEEDS::table) return level.supported;
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    check::Context context{octavo::OCTAVO_ISA::table, octavo::scalar::table, "", false};
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) == "--emulated")
            context.emulated = true;
        else
            context.only = argv[i];
    }
    if (!context.emulated && !can_run()) {
        std::printf("This machine cannot run the instruction set '%s'.\n", context.table.name);
        return 77;
    }
    if (context.wants("elementwise")) check::check_elementwise(context);
    if (context.wants("linear")) check::check_linear(context);
    if (context.wants("attention")) check::check_attention(context);
    if (context.wants("sampler")) check::check_sampler(context);
    std::printf("%s: %d checks hold, %d do not\n", context.table.name, context.passed, context.failed);
    return context.failed > 0;
}
