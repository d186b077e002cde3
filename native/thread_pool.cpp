#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

// Within a step the others are microseconds away, and waiting is spinning: for so long, or for a quarter of the time that the thread's own
// share took. Where they have not come by then, a core has been taken away, or two threads share one, and spinning takes time from whoever
// is waited for, and from a quota.
constexpr auto kPatience = std::chrono::microseconds(50);
// How long a helper that has waited in vain lets others have its core. Nobody wakes it within a step: on a crowded machine that would be a
// switch of threads for each op.
constexpr auto kNap = std::chrono::milliseconds(1);
// Spins from one look at the clock, and at what others have not begun, to the next: about a microsecond.
constexpr int kGlance = 64;

// The current op in a word: its number, whether the caller sleeps until it is finished, and its shares.
constexpr int kShareBits = 15;
constexpr uint64_t kAwaited = 1 << kShareBits;
constexpr uint64_t number_of(uint64_t current) { return current >> (kShareBits + 1); }
constexpr int shares_of(uint64_t current) { return static_cast<int>(current & (kAwaited - 1)); }

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // some tens of cycles, as x86's pause; yield takes none on most processors
#endif
}

// A counter of the processor's, read in a few nanoseconds, in units of its own.
inline uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#else
    return 0;
#endif
}

// For its life, the thread that makes it keeps to some processors; where the system refuses that, it goes on where it may.
class BoundTo {
  public:
    explicit BoundTo(const std::vector<int>& cpus) {
        known_ = sched_getaffinity(0, sizeof before_, &before_) == 0;  // a set may be too small for a machine
        if (!known_) return;
        cpu_set_t own;
        CPU_ZERO(&own);
        for (int cpu : cpus)
            if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &own);
        sched_setaffinity(0, sizeof own, &own);
    }
    ~BoundTo() {
        if (known_) sched_setaffinity(0, sizeof before_, &before_);
    }
    BoundTo(const BoundTo&) = delete;

  private:
    cpu_set_t before_;
    bool known_;
};

}  // namespace

ThreadPool::ThreadPool(int threads, std::vector<std::vector<int>> cpus)
    : threads_(threads < 1 ? 1 : threads), cpus_(std::move(cpus)), shares_(new Share[static_cast<size_t>(threads_)]) {
    if (!cpus_.empty() && cpus_.size() != static_cast<size_t>(threads_))
        throw std::invalid_argument("A thread pool needs the processors of each thread, or none.");
    // Signals are the business of the interpreter's main thread: helpers inherit a full mask.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (int thread = 1; thread < threads_; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
    } catch (...) {  // no more threads to be had
        stop();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_.store(true, std::memory_order_relaxed);
    steps_.fetch_add(1, std::memory_order_release);
    steps_.notify_all();
    for (auto& helper : helpers_) helper.join();
}

void ThreadPool::run_step(const Step& step) {
    std::lock_guard<std::mutex> turn(mutex_);
    std::optional<BoundTo> bound;
    if (!cpus_.empty()) bound.emplace(cpus_[0]);
    step_ = step;
    first_ = number_of(current_.load(std::memory_order_relaxed)) + 2;
    if (threads_ > 1) {
        publish(-1, 1);  // an op of which there is nothing to take: helpers that wake before the first one stay
        steps_.fetch_add(1, std::memory_order_release);
        steps_.notify_all();
    }
    go_on(0);
    take_part(0);
    if (!failed_.load(std::memory_order_relaxed)) return;
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::help(int thread) {
    std::optional<BoundTo> bound;
    if (!cpus_.empty()) bound.emplace(cpus_[static_cast<size_t>(thread)]);
    for (;;) {
        const uint32_t step = steps_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return;
        take_part(thread);
        steps_.wait(step, std::memory_order_acquire);
    }
}

// Goes from op to op to the end of the step.
void ThreadPool::take_part(int thread) {
    for (;;) {
        const uint64_t current = current_.load(std::memory_order_acquire);
        const int shares = shares_of(current);
        if (shares == 0) return;
        const uint64_t began = ticks();
        if (thread < shares) take(current, thread);
        if (wait(current, thread, began)) continue;
        if (thread > 0)
            std::this_thread::sleep_for(kNap);
        else if (uint64_t expected = current; current_.compare_exchange_strong(expected, current | kAwaited, std::memory_order_acquire))
            current_.wait(current | kAwaited, std::memory_order_acquire);
    }
}

// Spins until another op is the current one, with patience, and takes what nobody has begun; returns whether it came to that.
bool ThreadPool::wait(uint64_t current, int thread, uint64_t began) {
    const auto spin = [&] {
        for (int i = 0; i < kGlance; ++i, pause_cpu())
            if (number_of(current_.load(std::memory_order_acquire)) != number_of(current)) return true;
        return false;
    };
    if (spin()) return true;
    const int shares = shares_of(current);
    const uint64_t now = ticks(), quarter = (now - began) / 4;
    const auto end = Clock::now() + kPatience;
    do {  // once at least: a thread that was kept from running has no time left, and shares may still be there
        for (int i = 1; i < shares; ++i) take(current, (thread + i) % shares);
        if (spin()) return true;
    } while (Clock::now() < end || ticks() - now < quarter);
    return false;
}

// Computes a share of an op, if nobody has begun it. An op that is over has no such share, and one that has stays the current one until the
// share is finished: only then is there a step to look at.
void ThreadPool::take(uint64_t current, int share) {
    std::atomic<uint64_t>& taken = shares_[static_cast<size_t>(share)].taken;
    uint64_t last = taken.load(std::memory_order_relaxed);
    if (last >= number_of(current) || !taken.compare_exchange_strong(last, number_of(current), std::memory_order_acquire)) return;
    const int op = static_cast<int>(number_of(current) - first_), shares = shares_of(current);
    compute(op, share, shares);
    if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < shares) return;
    finished_.store(0, std::memory_order_relaxed);
    go_on(op + 1);
}

void ThreadPool::compute(int op, int share, int shares) {
    try {
        step_.compute(step_.context, op, share, shares);
    } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
    }
}

// Makes the op the current one, or the first after it that is for several: what has one share only, whoever comes by computes.
void ThreadPool::go_on(int op) {
    for (; op < step_.ops && !failed_.load(std::memory_order_relaxed); ++op) {
        const int shares = step_.shares_of(step_.context, op);
        if (shares > 1) return publish(op, shares);
        compute(op, 0, 1);
    }
    publish(op, 0);
}

void ThreadPool::publish(int op, int shares) {
    const uint64_t number = first_ + static_cast<uint64_t>(static_cast<int64_t>(op));
    const uint64_t before = current_.exchange(number << (kShareBits + 1) | static_cast<uint64_t>(shares), std::memory_order_acq_rel);
    if (before & kAwaited) current_.notify_one();
}

}  // namespace octavo
