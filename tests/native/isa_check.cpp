// Compares the kernel table OCTAVO_ISA with the scalar one on seeded inputs: isa_check [--emulated] [GROUP]. Exit status: 0 when all checks
// hold, 1 when one does not, 77 when this machine lacks the instructions. --emulated tries all the same, and spares what the emulator gets
// wrong.
#include "isa_check.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace octavo {
namespace scalar {
extern const KernelTable table;
}
namespace OCTAVO_ISA {
extern const KernelTable table;
}
}  // namespace octavo

namespace {

bool can_run(const std::string& name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    if (name == "avx2") return avx2;
    if (name == "avx512") return avx512;
    if (name == "avx512_bf16") return avx512 && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    const bool dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    const unsigned long more = HWCAP2_I8MM | HWCAP2_BF16;
    if (name == "neon") return dotprod;
    if (name == "neon_i8mm") return dotprod && (getauxval(AT_HWCAP2) & more) == more;
#endif
    return name == "scalar";
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
    if (!context.emulated && !can_run(context.table.name)) {
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
