#include "runtime/executor/action_watch.h"

#include <algorithm>

namespace geopipe {

void ActionWatch::State::End(uint64_t number, int64_t end_ns) {
  const std::lock_guard lock(mutex);
  while (!entries.empty() && entries.front().number <= number) {
    entries.pop_front();
  }
  if (!entries.empty()) {
    int64_t& since_ns = entries.front().under_way.since_ns;
    since_ns = std::max(since_ns, end_ns);
  }
}

ActionWatch::Scope::Scope(ActionWatch* watch, const Action& action, const Clock& clock) : watch_(watch) {
  if (watch_ == nullptr) {
    return;
  }
  State& state = *watch_->state_;
  const std::lock_guard lock(state.mutex);
  number_ = state.next_number++;
  state.entries.push_back({.number = number_, .under_way = {.action = action, .since_ns = clock.NowNs()}});
  state.enqueues = true;
}

ActionWatch::Scope::~Scope() {
  if (watch_ == nullptr) {
    return;
  }
  {
    const std::lock_guard lock(watch_->state_->mutex);
    watch_->state_->enqueues = false;
  }
  work_.Then([state = watch_->state_, number = number_, work = work_] { state->End(number, work.ready_ns()); });
}

ActionWatch::Break::Break(ActionWatch& watch, const Clock& clock) : watch_(watch), clock_(clock) {
  State& state = *watch_.state_;
  const std::lock_guard lock(state.mutex);
  suspends_ = state.enqueues;
  state.suspended = suspends_;
}

ActionWatch::Break::~Break() {
  if (!suspends_) {
    return;
  }
  State& state = *watch_.state_;
  const std::lock_guard lock(state.mutex);
  state.suspended = false;
  state.entries.back().under_way.since_ns = clock_.NowNs();
}

std::optional<ActionWatch::UnderWay> ActionWatch::Now() const {
  const std::lock_guard lock(state_->mutex);
  const bool is_none = state_->entries.empty() || (state_->suspended && state_->entries.size() == 1);
  return is_none ? std::nullopt : std::optional(state_->entries.front().under_way);
}

}  // namespace geopipe
