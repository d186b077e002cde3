#include "step_thread.h"

#include <signal.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {

StepThread::StepThread(std::vector<Turn> turns) : turns_(std::move(turns)), states_(turns_.size()) {
    if (turns_.empty()) throw std::invalid_argument("A step thread needs a Program.");
    for (const Turn& turn : turns_)
        if (!turn.program || !turn.sampling) throw std::invalid_argument("A turn has a Program and the sampler's rows that it fills.");
    // Signals are the business of the interpreter's main thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { work(); });
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StepThread::State& StepThread::state(int turn) {
    if (turn < 0 || static_cast<size_t>(turn) >= states_.size())
        throw std::out_of_range("There are " + std::to_string(states_.size()) + " turns, and none is number " + std::to_string(turn) + ".");
    return states_[static_cast<size_t>(turn)];
}

void StepThread::start(int turn, std::vector<int> open) {
    std::lock_guard lock(mutex_);
    if (closed_) throw std::runtime_error("The thread of the steps has been closed.");
    State& next = state(turn);
    if (!next.over) throw std::logic_error("A step of this turn is not over yet.");
    next = {false, nullptr};
    const int before = std::exchange(last_, turn);
    queue_.push_back({turn, before, std::move(open), nullptr});
    if (before < 0 || states_[static_cast<size_t>(before)].over) fill(queue_.back());
    queued_.notify_one();
}

void StepThread::wait(int turn) {
    std::unique_lock lock(mutex_);
    State& awaited = state(turn);
    over_.wait(lock, [&] { return awaited.over; });
    if (awaited.error) std::rethrow_exception(std::exchange(awaited.error, nullptr));
}

void StepThread::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
    }
    queued_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void StepThread::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        queued_.wait(lock, [&] { return closed_ || !queue_.empty(); });
        if (closed_) break;
        const Job job = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        std::exception_ptr error = job.error;
        try {
            if (!error) turns_[static_cast<size_t>(job.turn)].program->run(0, -1);
        } catch (...) { error = std::current_exception(); }
        lock.lock();
        if (!queue_.empty()) fill(queue_.front());  // before anyone learns that this step is over, and may write its rows anew
        states_[static_cast<size_t>(job.turn)] = {true, std::move(error)};
        over_.notify_all();
    }
    for (const Job& job : queue_)
        states_[static_cast<size_t>(job.turn)] = {true, std::make_exception_ptr(std::runtime_error("The step was never begun."))};
    queue_.clear();
    over_.notify_all();
}

// Makes the open tokens of a step what the one before, which is over, has sampled.
void StepThread::fill(Job& job) const {
    if (job.open.empty()) return;
    StepInputs& inputs = *turns_[static_cast<size_t>(job.turn)].program->inputs;
    const SampleInputs* sampled = job.before < 0 ? nullptr : turns_[static_cast<size_t>(job.before)].sampling.get();
    const int rows = sampled ? sampled->rows : 0;
    for (int token : job.open) {
        const int row = token < 0 || token >= inputs.tokens ? -1 : inputs.token_ids[static_cast<size_t>(token)];
        if (row < 0 || row >= rows) {
            job.error = std::make_exception_ptr(std::out_of_range("Token " + std::to_string(token) + " of " +
                                                                  std::to_string(inputs.tokens) + " names none of the " +
                                                                  std::to_string(rows) + " rows that the step before has sampled."));
            return;
        }
        inputs.token_ids[static_cast<size_t>(token)] = sampled->token_ids[static_cast<size_t>(row)];
    }
}

}  // namespace octavo
