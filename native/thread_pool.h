// One pool per process: threads enter once per step, go from op to op together, and sleep between steps.
//
// An op is a number of shares, fixed by the op and the size of the pool; who computes a share never shows in what is computed. A thread
// takes the share of its own number, and where it then waits for others, also what they have not begun. So a thread that the system lets
// wait holds nothing up but a share that it has begun, and it comes back to whichever op is the current one then: the caller alone can
// finish a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace octavo {

class ThreadPool {
  public:
    // cpus: the processors that each thread keeps to; empty: the system chooses. Thread 0 is whoever calls, and keeps to its own for a
    // step.
    explicit ThreadPool(int threads, std::vector<std::vector<int>> cpus = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // A step: body(op, share, shares) for each of the shares_of(op) shares, 1 to threads(), of each of `ops` ops. Those of an op run in any
    // order on any threads, those of the next one after all of them. Callers queue for the pool. Where a body throws, no further op is
    // begun, and the first exception is thrown again here; the pool goes on.
    template <class SharesOf, class Body>
    void run(int ops, SharesOf&& shares_of, Body&& body) {
        struct Both {
            std::remove_reference_t<SharesOf>& shares_of;
            std::remove_reference_t<Body>& body;
        } both{shares_of, body};
        run_step({ops, &both, [](void* both, int op) { return static_cast<Both*>(both)->shares_of(op); },
                  [](void* both, int op, int share, int shares) { static_cast<Both*>(both)->body(op, share, shares); }});
    }
    // Ops that have a share for each thread.
    template <class Body>
    void run(int ops, Body&& body) {
        run(ops, [this](int) { return threads_; }, body);
    }
    // One such op: body(share, shares).
    template <class Body>
    void run(Body&& body) {
        run(1, [&](int, int share, int shares) { body(share, shares); });
    }

  private:
    struct Step {
        int ops = 0;
        void* context = nullptr;
        int (*shares_of)(void* context, int op) = nullptr;
        void (*compute)(void* context, int op, int share, int shares) = nullptr;
    };
    struct alignas(64) Share {
        std::atomic<uint64_t> taken{0};  // the number of the last op in which it was taken
    };
    void run_step(const Step& step);
    void take_part(int thread);
    bool wait(uint64_t current, int thread, uint64_t began);
    void take(uint64_t current, int share);
    void compute(int op, int share, int shares);
    void go_on(int op);
    void publish(int op, int shares);
    void help(int thread);
    void stop();

    // Words that threads spin on or count in have a cache line of their own.
    alignas(64) std::atomic<uint64_t> current_{0};  // the op: its number, counted over all steps, and its shares; none: the step is over
    alignas(64) std::atomic<int> finished_{0};      // shares of the current op
    alignas(64) std::atomic<uint32_t> steps_{0};    // where helpers sleep
    Step step_;                                     // for whoever has a share of the current op
    uint64_t first_ = 0;                            // the number of the step's first op
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;  // of the share that set failed_
    std::atomic<bool> stop_{false};
    int threads_;
    std::vector<std::vector<int>> cpus_;
    std::mutex mutex_;
    std::unique_ptr<Share[]> shares_;
    std::vector<std::thread> helpers_;
};

}  // namespace octavo
