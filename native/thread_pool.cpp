#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

namespace octavo {

static inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
    // Signals are the business of the interpreter's main thread: workers inherit a full mask.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (int thread = 1; thread < threads_; ++thread) workers_.emplace_back([this, thread] { work(thread); });
    } catch (...) {  // no more threads to be had: those that started are not waiting at a barrier yet, and leave
        stop();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::enter(Entry entry, void* context) {
    std::lock_guard<std::mutex> turn(mutex_);
    entry_ = entry;
    context_ = context;
    if (threads_ > 1) {
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }
    entry(context, 0, threads_);
    barrier();
}

void ThreadPool::work(int thread) {
    uint32_t seen = 0;
    for (;;) {
        epoch_.wait(seen, std::memory_order_acquire);
        seen = epoch_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return;
        entry_(context_, thread, threads_);
        barrier();
    }
}

void ThreadPool::barrier() {
    if (threads_ == 1) return;
    uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads_)) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    // A core may be shared or taken away: after some tens of microseconds, let whoever holds it run.
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
        if (spins < 4096)
            pause_cpu();
        else
            sched_yield();
    }
}

}  // namespace octavo
