// A thread that runs the steps of Programs one after another, so that the next one can be written while one runs.
//
// What a step has sampled becomes the input of the next one here, between the two: no one who needs the interpreter's lock is waited for.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "program.h"
#include "sample_inputs.h"

namespace octavo {

// A Program, and the sampler's rows that its steps fill.
struct Turn {
    std::shared_ptr<Program> program;
    std::shared_ptr<SampleInputs> sampling;
};

class StepThread {
  public:
    explicit StepThread(std::vector<Turn> turns);
    ~StepThread() { close(); }
    StepThread(const StepThread&) = delete;

    // Queues a step of the Program of a turn, whose last one has been waited for; its inputs are not touched until it is over. Each of the
    // `open` tokens holds a row that is sampled by the step queued before, and becomes what that row has sampled.
    void start(int turn, std::vector<int> open);
    // Returns once the step of a turn is over, and throws what it has thrown.
    void wait(int turn);
    // Ends the thread after the step that runs; those behind it fail. Twice changes nothing.
    void close();

  private:
    struct Job {
        int turn, before;  // whose rows the open tokens name; -1: there is none
        std::vector<int> open;
        std::exception_ptr error;  // why it cannot run
    };
    struct State {
        bool over = true;
        std::exception_ptr error;
    };
    void work();
    void fill(Job& job) const;
    State& state(int turn);

    std::vector<Turn> turns_;
    std::mutex mutex_;  // guards all below
    std::condition_variable queued_, over_;
    std::vector<State> states_;
    std::deque<Job> queue_;
    int last_ = -1;  // whose step was queued last
    bool closed_ = false;
    std::thread thread_;
};

}  // namespace octavo
