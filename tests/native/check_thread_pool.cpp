// What a thread pool does with the shares of ops, with exceptions, and with a core too few: check_thread_pool. Exit status 0 when all
// holds; else the line that does not is named.
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "thread_pool.h"

using octavo::ThreadPool;

static void require(bool holds, const std::string& what) {
    if (holds) return;
    std::printf("does not hold: %s\n", what.c_str());
    std::exit(1);
}

// Ops of one share and of several, in turn: each share is computed once, when all of the ops before are whole.
static bool works(ThreadPool& pool) {
    constexpr int kOps = 40;
    const int threads = pool.threads();
    const auto shares_of = [threads](int op) { return op % 4 == 1 ? 1 : op % 4 == 2 ? (threads + 1) / 2 : threads; };
    std::vector<std::atomic<int>> times(static_cast<size_t>(kOps * threads));
    std::atomic<int> sum{0};
    std::atomic<bool> whole{true};
    int before[kOps + 1] = {};
    for (int op = 0; op < kOps; ++op) before[op + 1] = before[op] + shares_of(op);
    pool.run(kOps, shares_of, [&](int op, int share, int shares) {
        if (shares != shares_of(op) || sum < before[op]) whole = false;
        ++times[static_cast<size_t>(op * threads + share)];
        ++sum;
    });
    for (int op = 0; op < kOps; ++op)
        for (int share = 0; share < threads; ++share)
            if (times[static_cast<size_t>(op * threads + share)] != (share < shares_of(op) ? 1 : 0)) return false;
    return whole && sum == before[kOps];
}

// The text of what run() throws when a share of one of eight ops throws; "" where it throws nothing.
static std::string thrown(ThreadPool& pool, int thrower, int where) {
    std::atomic<int> last{0};
    try {
        pool.run(8, [&](int op, int share, int) {
            last = op;
            if (share == thrower && op == where) throw std::runtime_error("share " + std::to_string(share));
        });
    } catch (const std::runtime_error& error) { return last == where ? error.what() : "an op was begun after that of the exception"; }
    return "";
}

static double processor_seconds() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
static long switches() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}
static void work() {  // some tens of microseconds
    for (int i = 0; i < 40000; ++i) asm volatile("");
}

// With all threads on one core: what a step costs beside its work, and how often threads give the core up.
static void check_one_core() {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    constexpr int kOps = 2000, kThreads = 4;
    const auto body = [](int, int, int) { work(); };
    ThreadPool alone(1), pool(kThreads);
    const double start = processor_seconds();
    for (int share = 0; share < kThreads; ++share) alone.run(kOps, body);
    const double middle = processor_seconds();
    const long before = switches();
    const auto began = std::chrono::steady_clock::now();
    pool.run(kOps, body);
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - began;
    const double end = processor_seconds();
    require(end - middle < 3 * (middle - start), "threads that share a core take little more time than one thread");
    // A helper without work naps for a millisecond at a time.
    require(static_cast<double>(switches() - before) < kOps / 4 + kThreads * elapsed.count(),
            "threads that share a core do not switch for each op");
    sched_setaffinity(0, sizeof all, &all);
}

// Callers queue for the pool.
static void check_callers() {
    ThreadPool pool(3);
    std::atomic<bool> fine{true};
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i)
        callers.emplace_back([&] {
            for (int repeat = 0; repeat < 200; ++repeat)
                if (!works(pool)) fine = false;
        });
    for (auto& caller : callers) caller.join();
    require(fine, "steps of several callers keep apart");
}

// Each thread keeps to its processors, and the caller only for the step.
static void check_places() {
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    std::vector<int> usable;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &before)) usable.push_back(cpu);
    const int first = usable.front(), last = usable.back();
    ThreadPool pool(2, {{first}, {last}});
    const auto caller = std::this_thread::get_id();
    std::atomic<bool> fine{true};
    std::atomic<int> helped{0};
    for (int repeat = 0; repeat < 10000 && helped == 0; ++repeat)
        pool.run([&](int, int) {
            const bool helper = std::this_thread::get_id() != caller;
            cpu_set_t own;
            sched_getaffinity(0, sizeof own, &own);
            if (CPU_COUNT(&own) != 1 || !CPU_ISSET(helper ? last : first, &own)) fine = false;
            helped += helper;
            work();
        });
    sched_getaffinity(0, sizeof after, &after);
    require(fine && helped > 0, "threads keep to the processors given");
    require(CPU_EQUAL(&before, &after), "the caller may go where it could before");
}

int main() {
    for (int threads : {1, 2, 3, 8}) {
        ThreadPool pool(threads);
        const std::string name = std::to_string(threads) + " threads: ";
        for (int repeat = 0; repeat < 200; ++repeat) require(works(pool), name + "each share is computed once, and in its turn");
        for (int repeat = 0; repeat < 10; ++repeat)
            for (int thrower = 0; thrower < threads; ++thrower)
                for (int op : {0, 1, 7}) {
                    const std::string got = thrown(pool, thrower, op);
                    require(got == "share " + std::to_string(thrower), name + "the caller gets the exception, not '" + got + "'");
                    require(works(pool), name + "the pool works after an exception");
                }
        bool caught = false;
        try {
            pool.run([](int, int) { throw std::bad_alloc(); });
        } catch (const std::bad_alloc&) { caught = true; }
        require(caught && works(pool), name + "every share may throw, and one exception arrives as what it is");
        int runs = 0;
        pool.run(0, [&](int, int, int) { ++runs; });
        require(runs == 0, name + "a step may have no ops");
    }
    check_callers();
    check_one_core();
    check_places();
    std::printf("all holds\n");
}
