#include "runtime/executor/step_recorder.h"

#include <algorithm>

namespace geopipe {

void StepRecorder::Begin(size_t actions) {
  entries_.clear();
  entries_.reserve(actions);
}

void StepRecorder::Record(const Action& action, const Completion& work) {
  entries_.push_back({.action = action, .work = work});
}

void StepRecorder::RecordMessage(const Action& action, const Completion& message, int64_t until_ns) {
  entries_.push_back({.action = action, .work = message, .until_ns = until_ns});
}

std::optional<int64_t> StepRecorder::begun_ns() const {
  const auto first = std::ranges::find_if(entries_, [](const Entry& entry) { return IsCompute(entry.action.kind); });
  return first != entries_.end() && first->work.done() ? std::optional(first->work.begun_ns()) : std::nullopt;
}

bool StepRecorder::is_over() const {
  return std::ranges::all_of(entries_, [](const Entry& entry) { return entry.work.done(); });
}

std::optional<Action> StepRecorder::FirstUnderWay() const {
  const auto first = std::ranges::find_if(
      entries_, [](const Entry& entry) { return IsCompute(entry.action.kind) && !entry.work.done(); });
  return first == entries_.end() ? std::nullopt : std::optional(first->action);
}

std::optional<StepRecorder::Timings> StepRecorder::Take() const {
  const std::optional<int64_t> begun_ns = this->begun_ns();
  if (!begun_ns.has_value()) {
    return std::nullopt;
  }
  Timings timings{.begun_ns = *begun_ns, .busy_ns = 0, .actions = {}};
  for (const auto& [action, work, until_ns] : entries_) {
    const bool computes = IsCompute(action.kind);
    const int64_t start_ns = computes ? work.begun_ns() : work.ready_ns();
    const int64_t end_ns = computes ? work.ready_ns() : std::max(start_ns, until_ns);
    timings.busy_ns += computes ? end_ns - start_ns : 0;
    timings.actions.push_back({action, start_ns - *begun_ns, end_ns - *begun_ns});
  }
  return timings;
}

}  // namespace geopipe
