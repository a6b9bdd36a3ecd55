#include "runtime/tensor/completion.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "optimizer/base/check.h"
#include "runtime/base/clock.h"

namespace geopipe {

struct Completion::State {
  std::mutex mutex;
  std::condition_variable told;
  bool done = false;
  bool all_told = false;  // the callbacks have run
  absl::Status status;
  int64_t begun_ns = 0;
  int64_t ready_ns = 0;
  std::vector<std::function<void()>> waiting;
  std::shared_ptr<const void> point;
};

Completion Completion::Pending(std::shared_ptr<const void> point) {
  Completion completion;
  completion.state_ = std::make_shared<State>();
  completion.state_->point = std::move(point);
  return completion;
}

void Completion::Complete(int64_t begun_ns, int64_t ready_ns) { End(begun_ns, ready_ns, absl::OkStatus()); }

void Completion::Fail(absl::Status why) {
  GP_CHECK(!why.ok(), "a failure without an error");
  const int64_t now_ns = Clock::Real().NowNs();
  End(now_ns, now_ns, std::move(why));
}

void Completion::End(int64_t begun_ns, int64_t ready_ns, absl::Status status) {
  std::vector<std::function<void()>> waiting;
  {
    const std::lock_guard lock(state_->mutex);
    GP_CHECK(!state_->done, "ended twice");
    state_->done = true;
    state_->status = std::move(status);
    state_->begun_ns = begun_ns;
    state_->ready_ns = ready_ns;
    waiting.swap(state_->waiting);
  }
  for (std::function<void()>& callback : waiting) {
    callback();
    callback = nullptr;
  }
  const std::lock_guard lock(state_->mutex);
  state_->all_told = true;
  state_->told.notify_all();
}

bool Completion::done() const {
  if (state_ == nullptr) {
    return true;
  }
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

absl::Status Completion::status() const {
  GP_CHECK(done());
  return state_ == nullptr ? absl::OkStatus() : state_->status;
}

int64_t Completion::begun_ns() const {
  GP_CHECK(done());
  return state_ == nullptr ? begun_ns_ : state_->begun_ns;
}

int64_t Completion::ready_ns() const {
  GP_CHECK(done());
  return state_ == nullptr ? ready_ns_ : std::max(ready_ns_, state_->ready_ns);
}

void Completion::Then(std::function<void()> callback) const {
  if (state_ != nullptr) {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) {
      state_->waiting.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

bool Completion::WaitUntil(int64_t deadline_ns) const {
  if (state_ == nullptr) {
    return true;
  }
  const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
  std::unique_lock lock(state_->mutex);
  return state_->told.wait_until(lock, deadline, [this] { return state_->all_told; });
}

const std::shared_ptr<const void>& Completion::point() const {
  static const std::shared_ptr<const void> kNone;
  return state_ == nullptr ? kNone : state_->point;
}

Completion Completion::NotBefore(int64_t ns) const {
  Completion later = *this;
  later.ready_ns_ = std::max(ready_ns_, ns);
  return later;
}

}  // namespace geopipe
