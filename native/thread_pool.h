// One pool per process: threads enter once per step, meet at a spin barrier after each op, and sleep between steps.
#pragma once

#include <atomic>
#include <cstdint>
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

    // Runs body(thread, threads) on every thread, the caller being thread 0; returns when all have. Callers queue for the pool.
    template <class Body>
    void run(Body&& body) {
        enter([](void* context, int thread, int threads) { (*static_cast<Body*>(context))(thread, threads); }, &body);
    }

    // Every thread of a running body must call it equally often.
    void barrier();

  private:
    using Entry = void (*)(void*, int, int);
    void enter(Entry entry, void* context);
    void work(int thread);
    void stop();

    // Each word that threads spin on has a cache line of its own.
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    alignas(64) Entry entry_ = nullptr;
    void* context_ = nullptr;
    int threads_;
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::vector<std::thread> workers_;
};

}  // namespace octavo
