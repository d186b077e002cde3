// What a thread pool does with the shares of ops, with exceptions, with a core too few, and with threads that the system lets wait:
// check_thread_pool. Exit status 0 when all holds; else the line that does not is named.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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
static void check_one_core(int threads) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    constexpr int kOps = 1000;
    const auto body = [](int, int, int) { work(); };
    ThreadPool alone(1), pool(threads);
    const double start = processor_seconds();
    for (int share = 0; share < threads; ++share) alone.run(kOps, body);
    const double middle = processor_seconds();
    const long before = switches();
    const auto began = std::chrono::steady_clock::now();
    pool.run(kOps, body);
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - began;
    const double end = processor_seconds();
    require(end - middle < 3 * (middle - start), "threads that share a core take little more time than one thread");
    // A helper without work naps for a millisecond at a time.
    require(static_cast<double>(switches() - before) < kOps / 4 + threads * elapsed.count(),
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

// A thread of this process that does not run for the life of this, whatever it was at: a child process traces it.
class Held {
  public:
    explicit Held(pid_t thread) {
        int go[2], told[2];
        if (pipe(go) != 0 || pipe(told) != 0) return;
        if (child_ = fork(); child_ == 0) {
            close(go[1]), close(told[0]);
            char byte = 0;
            if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 && ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
                waitpid(thread, nullptr, __WALL) == thread)
                byte = 1;
            if (write(told[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 0) ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
            _exit(0);
        }
        close(go[0]), close(told[1]);
        char byte = 0;
        holds_ = read(told[0], &byte, 1) == 1 && byte == 1;
        close(told[0]);
        go_ = go[1];
    }
    ~Held() {
        close(go_);
        waitpid(child_, nullptr, 0);
    }
    Held(const Held&) = delete;
    bool holds() const { return holds_; }  // false: the system refuses

  private:
    pid_t child_ = -1;
    int go_ = -1;
    bool holds_ = false;
};

// The threads of a pool, its caller's first; each step of it is whole.
static std::vector<pid_t> threads_of(ThreadPool& pool) {
    std::vector<std::atomic<pid_t>> ids(static_cast<size_t>(pool.threads()));
    std::atomic<int> here{0};
    pool.run([&](int share, int shares) {
        ids[static_cast<size_t>(share)] = gettid();
        for (++here; here < shares;) std::this_thread::yield();
    });
    std::vector<pid_t> result{gettid()};
    for (auto& id : ids)
        if (id != result[0]) result.push_back(id);
    return result;
}

// A thread that waits within a share: all others are computed, and none of the next op; a thread that has begun none is not missed.
static void check_held() {
    constexpr int kThreads = 3, kOps = 4;
    ThreadPool pool(kThreads);
    const auto threads = threads_of(pool);
    for (int share = 0; share < kThreads; ++share) {
        std::atomic<pid_t> inside{0};
        std::atomic<bool> open{false};
        std::atomic<int> computed{0}, later{0};
        std::thread step([&] {
            pool.run(kOps, [&](int op, int number, int) {
                if (op == 1 && number == share)
                    for (inside = gettid(); !open;) std::this_thread::yield();
                (op > 1 ? later : computed) += 1;
            });
        });
        while (inside == 0) std::this_thread::yield();
        {
            const Held held(inside);
            if (!held.holds()) std::printf("the system lets no thread be traced\n");
            open = true;
            while (held.holds() && computed < 2 * kThreads - 1) std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            if (held.holds())
                require(computed == 2 * kThreads - 1 && later == 0, "others compute what a thread that waits has not begun, and no more");
        }
        step.join();
        require(computed == 2 * kThreads && later == 2 * kThreads, "a step ends once the thread runs again");
    }
    for (size_t thread = 1; thread < threads.size(); ++thread) {
        const Held held(threads[thread]);
        for (int repeat = 0; repeat < 20; ++repeat) require(works(pool), "steps do not need a thread that waits between them");
    }
}

// Any thread, at any moment.
static void check_held_at_random() {
    for (int threads : {2, 4}) {
        ThreadPool pool(threads);
        std::atomic<bool> over{false}, fine{true};
        std::atomic<long> steps{0};
        std::vector<pid_t> ids;
        std::atomic<bool> known{false};
        std::thread caller([&] {
            ids = threads_of(pool);
            for (known = true; !over; ++steps)
                if (!works(pool)) fine = false;
        });
        while (!known) std::this_thread::yield();
        for (unsigned turn = 0; turn < 100; ++turn) {
            const Held held(ids[turn % ids.size()]);
            std::this_thread::sleep_for(std::chrono::microseconds(turn * 37 % 2000));
        }
        const long before = steps;
        while (steps < before + 2) std::this_thread::yield();
        over = true;
        caller.join();
        require(fine, "each share is computed once, whoever waits and whenever");
    }
}

// After a step nobody computes anything.
static void check_rest() {
    ThreadPool pool(4);
    require(works(pool), "the pool works");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    require(processor_seconds() - before < 0.01, "threads sleep between steps");
}

int main() {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // some systems let only a parent trace
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
    for (int threads : {2, 4, 8}) check_one_core(threads);
    check_rest();
    check_held();
    check_held_at_random();
    check_places();
    std::printf("all holds\n");
}
