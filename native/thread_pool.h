// One pool per process: threads enter once per step, meet at barriers between ops, and sleep between steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Runs body(thread, threads) on every thread, the caller being thread 0; returns when all have. Callers queue for the pool. Where a
    // thread's body throws, the others leave at their next barrier, and the first exception is thrown again here; the pool goes on.
    template <class Body>
    void run(Body&& body) {
        enter([](void* context, int thread, int threads) { (*static_cast<Body*>(context))(thread, threads); }, &body);
    }

    // Every thread of a running body must call it equally often. Throws where another thread's body has thrown and will not come.
    void barrier();

  private:
    using Entry = void (*)(void*, int, int);
    struct Abandoned {};
    void enter(Entry entry, void* context);
    void work(int thread);
    void run_entry(int thread);
    template <class T>
    void wait_for_change(const std::atomic<T>& word, T old);
    void stop();

    // Each word that threads spin on has a cache line of its own.
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    std::atomic<bool> failed_{false};  // beside the phase, so that whoever waits for that sees this at no cost
    alignas(64) std::atomic<int> finished_{0};
    alignas(64) std::atomic<int> crowded_{0};  // waits to come that expect to be long
    std::exception_ptr error_;                 // of the thread that set failed_
    alignas(64) Entry entry_ = nullptr;
    void* context_ = nullptr;
    int threads_;
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::vector<std::thread> workers_;
};

}  // namespace octavo
