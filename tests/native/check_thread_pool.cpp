// What a thread pool does with exceptions: check_thread_pool. Exit status 0 when all holds; else the line that does not is named.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "thread_pool.h"

using octavo::ThreadPool;

static void require(bool holds, const std::string& what) {
    if (holds) return;
    std::printf("does not hold: %s\n", what.c_str());
    std::exit(1);
}

// Every thread adds its share, barrier by barrier; what each reads after a barrier must be whole.
static bool works(ThreadPool& pool) {
    constexpr int kRounds = 5;
    std::atomic<int> sum{0};
    std::atomic<bool> whole{true};
    pool.run([&](int, int threads) {
        for (int round = 1; round <= kRounds; ++round) {
            ++sum;
            pool.barrier();
            if (sum != round * threads) whole = false;
            pool.barrier();
        }
    });
    return whole && sum == kRounds * pool.threads();
}

// The text of what run() throws when `thrower` throws after `barriers` of eight; "" where it throws nothing.
static std::string thrown(ThreadPool& pool, int thrower, int barriers) {
    try {
        pool.run([&](int thread, int) {
            for (int i = 0; i < 8; ++i) {
                if (thread == thrower && i == barriers) throw std::runtime_error("thread " + std::to_string(thread));
                pool.barrier();
            }
        });
    } catch (const std::runtime_error& error) { return error.what(); }
    return "";
}

int main() {
    for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const std::string name = std::to_string(threads) + " threads: ";
        require(works(pool), name + "a new pool works");
        for (int repeat = 0; repeat < 10; ++repeat)
            for (int thrower = 0; thrower < threads; ++thrower)
                for (int barriers : {0, 1, 7}) {
                    require(thrown(pool, thrower, barriers) == "thread " + std::to_string(thrower), name + "the caller gets the exception");
                    require(works(pool), name + "the pool works after an exception");
                }
        bool caught = false;
        try {
            pool.run([](int, int) { throw std::bad_alloc(); });
        } catch (const std::bad_alloc&) { caught = true; }
        require(caught && works(pool), name + "every thread may throw, and one exception arrives as what it is");
    }
    std::printf("all holds\n");
}
