#include "coordinator/core/run/restarts.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/backoff.h"

namespace geopipe {

std::optional<std::string> Restarts::OnLost(int64_t at_ns, const WorkerKey& worker, std::string cause) {
  while (!losses_.empty() && losses_.front().at_ns <= at_ns - kHourNs) {
    losses_.pop_front();
  }
  losses_.push_back({.at_ns = at_ns, .worker = worker, .cause = std::move(cause)});
  int64_t count = 0;
  std::string history;
  for (const Loss& loss : losses_) {
    if (loss.worker == worker) {
      history += fmt::format("{}({}) {}", count == 0 ? "" : "; ", count + 1, loss.cause);
      ++count;
    }
  }
  if (count <= per_hour_) {
    return std::nullopt;
  }
  return count == 1
             ? losses_.back().cause
             : fmt::format("worker {} was lost {} times within an hour: {}", DisplayName(worker), count, history);
}

int64_t Restarts::NextDelayNs() {
  const int32_t attempt = attempts_++;
  return attempt == 0 ? 0 : BackoffNs(kFirstDelayNs, kMaxDelayNs, attempt, jitter_);
}

}  // namespace geopipe
