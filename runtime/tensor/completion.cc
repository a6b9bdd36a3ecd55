#include "runtime/tensor/completion.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "optimizer/base/check.h"

namespace geopipe {

struct Completion::State {
  std::mutex mutex;
  std::condition_variable told;
  bool done = false;
  bool all_told = false;  // the callbacks have run
  int64_t begun_ns = 0;
  int64_t ready_ns = 0;
  std::vector<std::function<void()>> waiting;
};

Completion Completion::Pending() {
  Completion completion;
  completion.state_ = std::make_shared<State>();
  return completion;
}

void Completion::Complete(int64_t begun_ns, int64_t ready_ns) {
  std::vector<std::function<void()>> waiting;
  {
    const std::lock_guard lock(state_->mutex);
    GP_CHECK(!state_->done, "completed twice");
    state_->done = true;
    state_->begun_ns = begun_ns;
    state_->ready_ns = ready_ns;
    waiting.swap(state_->waiting);
  }
  for (const std::function<void()>& callback : waiting) {
    callback();
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

void Completion::Wait() const {
  if (state_ != nullptr) {
    std::unique_lock lock(state_->mutex);
    state_->told.wait(lock, [this] { return state_->all_told; });
  }
}

Completion Completion::NotBefore(int64_t ns) const {
  Completion later = *this;
  later.ready_ns_ = std::max(ready_ns_, ns);
  return later;
}

}  // namespace geopipe
