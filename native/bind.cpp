// The module octavo._native.
#include "bind.h"

using namespace octavo;

NB_MODULE(_native, m) {
    m.doc() = "Native kernels, thread pool and Program of octavo";

    nb::class_<KernelTable>(m, "KernelTable")
        .def_ro("name", &KernelTable::name)
        .def_ro("lanes", &KernelTable::lanes)
        .def_ro("fastest_as_int16", &KernelTable::fastest_as_i16, "Whether attention takes the least time over keys and values of int16.");

    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int, std::vector<std::vector<int>>>(), nb::arg("threads"), nb::arg("cpus") = std::vector<std::vector<int>>(),
             "The processors of each thread; none: any.")
        .def_prop_ro("threads", &ThreadPool::threads);

    m.def(
        "isa_levels",
        [] {
            nb::list levels;
            for (const auto& level : isa_levels()) levels.append(nb::make_tuple(level.table->name, level.supported, level.missing));
            return levels;
        },
        "The instruction set levels compiled in, best first: (name, supported here, what it needs).");
    m.def("select_isa", &select_isa, nb::arg("name") = "", nb::rv_policy::reference, "The best level of this machine, or the named one.");

    bind_weights(m);
    bind_attention(m);
    bind_sampler(m);
    bind_program(m);
    bind_steps(m);
    bind_text(m);
    bind_grammar(m);
    bind_probe(m);
}
