#include "coordinator/core/run/restarts.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/backoff.h"

namespace geopipe {

std::optional<std::string> Restarts::Enough(int64_t at_ns, const WorkerKey& worker, const std::string& cause) const {
  int64_t count = 1;
  std::string history;
  for (const Loss& loss : losses_) {
    if (loss.worker == worker && loss.at_ns > at_ns - kHourNs) {
      history += fmt::format("({}) {}; ", count++, loss.cause);
    }
  }
  if (count <= per_hour_) {
    return std::nullopt;
  }
  return count == 1 ? cause
                    : fmt::format("worker {} was lost {} times within an hour: {}({}) {}", DisplayName(worker), count,
                                  history, count, cause);
}

void Restarts::OnLost(int64_t at_ns, const WorkerKey& worker, std::string cause) {
  std::erase_if(losses_, [&](const Loss& loss) { return loss.at_ns <= at_ns - kHourNs; });
  losses_.push_back({.at_ns = at_ns, .worker = worker, .cause = std::move(cause)});
}

int64_t Restarts::NextDelayNs(bool of_node) {
  const int32_t attempt = attempts_++;
  if (attempt == 0) {
    return 0;
  }
  const int64_t of_node_ns = attempt <= kFirstNodeDelays ? kMaxFirstNodeDelayNs : kMaxNodeDelayNs;
  return BackoffNs(kFirstDelayNs, of_node ? of_node_ns : kMaxDelayNs, attempt, jitter_);
}

}  // namespace geopipe
