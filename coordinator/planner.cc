#include "coordinator/planner.h"

#include <utility>

namespace geopipe {

PlannerThread::PlannerThread(const Clock& clock, Plan plan, Begun begun, Answer answer)
    : clock_(clock), plan_(std::move(plan)), begun_(std::move(begun)), answer_(std::move(answer)), thread_([this] {
        Loop();
      }) {}

PlannerThread::~PlannerThread() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    unwanted_ = true;
    waiting_.clear();
    arrived_.notify_all();
  }
  thread_.join();
}

void PlannerThread::Start(StartPlanning request) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(request));
  arrived_.notify_one();
}

void PlannerThread::Stop(const StopPlanning& request) {
  std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const StartPlanning& each) { return each.incarnation == request.incarnation; });
  if (current_ == request.incarnation) {
    unwanted_ = true;
  }
}

void PlannerThread::Loop() {
  for (;;) {
    StartPlanning request;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
      if (closing_) {
        return;
      }
      request = std::move(waiting_.front());
      waiting_.pop_front();
      current_ = request.incarnation;
      unwanted_ = false;
    }
    begun_(PlannerBegun{request.job, request.incarnation});
    const int64_t deadline_ns = clock_.NowNs() + request.input.job.search.time_budget_ns;
    absl::StatusOr<PlanResult> result = plan_(request.input, [&] {
      if (clock_.NowNs() >= deadline_ns) {
        return true;
      }
      std::lock_guard lock(mutex_);
      return unwanted_;
    });
    bool wanted = false;
    {
      std::lock_guard lock(mutex_);
      current_ = 0;
      wanted = !unwanted_;
    }
    if (wanted) {
      answer_(PlannerDone{request.job, request.incarnation, std::move(result), {}});
    }
  }
}

}  // namespace geopipe
