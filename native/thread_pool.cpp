#include "thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace octavo {

static inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // some tens of cycles, as x86's pause; yield takes none on most processors
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

// Waits until `word` is no longer `old`. Within a step the others are microseconds away, and waiting is spinning. Where they have not come
// after some tens of microseconds, a core has been taken away, or two threads share one: then spinning takes time from whoever is waited
// for, and from a quota. The wait becomes a sleep, and the next ones are short of patience; one in sixty-four tries whether the cores are
// back.
template <class T>
void ThreadPool::wait_for_change(const std::atomic<T>& word, T old) {
    const int crowded = crowded_.load(std::memory_order_relaxed), patience = crowded ? 64 : 2048;
    for (int spins = 0; spins < patience; ++spins) {
        if (word.load(std::memory_order_acquire) != old) {
            if (!crowded) return;
            break;
        }
        pause_cpu();
    }
    crowded_.store(crowded ? crowded - 1 : 64, std::memory_order_relaxed);
    word.wait(old, std::memory_order_acquire);
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
    for (int count; (count = finished_.load(std::memory_order_acquire)) != threads_;) wait_for_change(finished_, count);
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
        phase_.fetch_add(1, std::memory_order_release);  // wakes who waits for this thread
        phase_.notify_all();
    }
    finished_.fetch_add(1, std::memory_order_acq_rel);
    finished_.notify_all();
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
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads_)) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        phase_.notify_all();
        return;
    }
    // A failure that the phase had already counted is seen before the wait, a later one ends it.
    while (!failed_.load(std::memory_order_relaxed) && phase_.load(std::memory_order_acquire) == phase) wait_for_change(phase_, phase);
    if (failed_.load(std::memory_order_relaxed)) throw Abandoned();
}

}  // namespace octavo
