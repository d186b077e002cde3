// Measures the limits that benchmarks/kernels.py compares with, and times kernels without Python in between.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "bind.h"
#include "memory.h"
#include "pack.h"
#include "probe.h"

namespace octavo {

namespace {

// Runs `count` ops, body(op, share, shares), and returns the seconds until all are done; with `processor_time`, those that the longest of
// the shares had a core for, over all ops, so that a machine in use by others can be measured too.
template <class Body>
double seconds_of(ThreadPool& pool, bool processor_time, size_t count, Body&& body) {
    auto now = [](clockid_t clock) {
        timespec time;
        clock_gettime(clock, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    std::vector<double> busy(static_cast<size_t>(pool.threads()) * 8);  // a cache line each
    double start = now(CLOCK_MONOTONIC);
    pool.run(static_cast<int>(count), [&](int op, int share, int shares) {
        double begin = processor_time ? now(CLOCK_THREAD_CPUTIME_ID) : 0;
        body(static_cast<size_t>(op), share, shares);
        if (processor_time) busy[static_cast<size_t>(share) * 8] += now(CLOCK_THREAD_CPUTIME_ID) - begin;
    });
    return processor_time ? *std::max_element(busy.begin(), busy.end()) : now(CLOCK_MONOTONIC) - start;
}

std::vector<double> read_rates(ThreadPool& pool, int64_t bytes, int repeats, bool processor_time) {
    require(bytes > 0, "probe_read needs bytes to read");
    Memory memory(bytes);
    std::memset(memory.data(), 1, static_cast<size_t>(bytes));
    std::vector<double> rates;
    std::atomic<uint64_t> sink{0};
    for (int repeat = 0; repeat < repeats; ++repeat)
        rates.push_back(static_cast<double>(bytes) / seconds_of(pool, processor_time, 1, [&](size_t, int share, int shares) {
                            const int64_t size = bytes / shares / 128 * 128;
                            sink += probe_read(memory.data() + share * size, size);
                        }));
    return rates;
}

std::vector<double> dot_rates(const KernelTable* isa, ThreadPool& pool, const std::string& format, int repeats, bool processor_time) {
    const Act act = isa->act_of(format_of(format));
    std::vector<double> rates;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        double operations = 0;
        double seconds = seconds_of(pool, processor_time, 1, [&](size_t, int share, int) {
            double done = probe_dot(isa->name, act, 1 << 20);
            if (share == 0) operations = done;
        });
        rates.push_back(operations * pool.threads() / seconds);
    }
    return rates;
}

// Seconds of each of `repeats` runs over all the weights in turn, activations being prepared beforehand.
std::vector<double> linear_times(const KernelTable* isa, ThreadPool& pool, const std::vector<std::shared_ptr<PackedWeightOwner>>& weights,
                                 int rows, int repeats, bool processor_time) {
    if (weights.empty()) return {};
    const PackedWeight& w = weights[0]->packed;
    require(rows > 0, "probe_linear needs rows");
    for (const auto& other : weights)
        require(other->table == isa && other->packed.n == w.n && other->packed.k == w.k && other->packed.format == w.format,
                "the weights must be of one shape and format, and packed for this instruction set");
    const Act act = isa->act_of(w.format);
    Memory x(int64_t{4} * rows * w.k), form(isa -> act_bytes(act, w.k) * rows), out(int64_t{4} * rows * w.n);
    for (int64_t i = 0; i < int64_t{rows} * w.k; ++i) reinterpret_cast<float*>(x.data())[i] = static_cast<float>(i % 251 - 125) / 64.0f;
    QuantizeArgs args{act, reinterpret_cast<float*>(x.data()), w.k, w.k, form.data()};
    std::vector<double> times;
    pool.run([&](int thread, int threads) { isa->quantize(args, share(rows, thread, threads)); });
    for (int repeat = 0; repeat < repeats; ++repeat)
        times.push_back(seconds_of(pool, processor_time, weights.size(), [&](size_t op, int share, int shares) {
            LinearArgs linear{&weights[op]->packed, form.data(), rows, nullptr, reinterpret_cast<float*>(out.data()), w.n, false};
            isa->linear(&linear, 1, share, shares);
        }));
    return times;
}

}  // namespace

void bind_probe(nb::module_& m) {
    m.def("probe_read", &read_rates, nb::arg("pool"), nb::arg("bytes"), nb::arg("repeats"), nb::arg("processor_time") = false,
          nb::call_guard<nb::gil_scoped_release>(),
          "Bytes a second that all threads read together from a buffer in huge pages, for each repeat.");
    m.def("probe_dot", &dot_rates, nb::arg("isa"), nb::arg("pool"), nb::arg("format"), nb::arg("repeats"),
          nb::arg("processor_time") = false, nb::call_guard<nb::gil_scoped_release>(),
          "Operations a second that all threads do in registers, with the instructions that multiply activations by weights of this packed "
          "format, for each repeat; of f32: float32 multiply-adds.");
    m.def("probe_linear", &linear_times, nb::arg("isa"), nb::arg("pool"), nb::arg("weights"), nb::arg("rows"), nb::arg("repeats"),
          nb::arg("processor_time") = false, nb::call_guard<nb::gil_scoped_release>(),
          "Seconds of running all the weights (of one shape) in turn, for each repeat.");
}

}  // namespace octavo
