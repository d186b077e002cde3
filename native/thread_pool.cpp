#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <utility>

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

// Spins until done(). A core may be shared or taken away: after some tens of microseconds, lets whoever holds it run.
template <class Done>
static void spin_until(Done&& done) {
    for (int spins = 0; !done(); ++spins) {
        if (spins < 4096)
            pause_cpu();
        else
            sched_yield();
    }
}

void ThreadPool::enter(Entry entry, void* context) {
    std::lock_guard<std::mutex> turn(mutex_);
    entry_ = entry;
    context_ = context;
    if (threads_ > 1) {
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }
    run_entry(0);
    spin_until([this] { return finished_.load(std::memory_order_acquire) == threads_; });
    finished_.store(0, std::memory_order_relaxed);
    if (!failed_.load(std::memory_order_relaxed)) return;
    // Whoever waited at a barrier has left it: the next body finds it empty.
    arrived_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
}

// Ends with a meeting of its own, not a barrier: a thread that throws has an unknown number of barriers before it.
void ThreadPool::run_entry(int thread) {
    try {
        entry_(context_, thread, threads_);
    } catch (const Abandoned&) {
    } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
    }
    finished_.fetch_add(1, std::memory_order_acq_rel);
}

void ThreadPool::work(int thread) {
    uint32_t seen = 0;
    for (;;) {
        epoch_.wait(seen, std::memory_order_acquire);
        seen = epoch_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return;
        run_entry(thread);
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
    spin_until([&] {
        if (failed_.load(std::memory_order_relaxed)) throw Abandoned();
        return phase_.load(std::memory_order_acquire) != phase;
    });
}

}  // namespace octavo
