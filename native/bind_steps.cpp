#include <nanobind/stl/pair.h>

#include "bind.h"
#include "step_thread.h"

namespace octavo {

void bind_steps(nb::module_& m) {
    using Given = std::vector<std::pair<std::shared_ptr<Program>, std::shared_ptr<SampleInputs>>>;
    nb::class_<StepThread>(m, "StepThread", "A thread that runs the steps of Programs one after another.")
        .def(
            "__init__",
            [](StepThread* self, const Given& given) {
                std::vector<Turn> turns;
                for (const auto& [program, sampling] : given) turns.push_back({program, sampling});
                new (self) StepThread(std::move(turns));
            },
            nb::arg("turns"), "Each turn is a Program and the sampler's rows that its steps fill.")
        .def("start", &StepThread::start, nb::arg("turn"), nb::arg("open"),
             "Queues a step of a turn. Each `open` token holds a row of the step queued before, and becomes what that row has sampled.")
        .def("wait", &StepThread::wait, nb::arg("turn"), nb::call_guard<nb::gil_scoped_release>(),
             "Returns once the step of a turn is over; raises what it has met.")
        .def("close", &StepThread::close, nb::call_guard<nb::gil_scoped_release>(),
             "Ends the thread after the step that runs; those behind it fail.");
}

}  // namespace octavo
