#include "coordinator/core/profiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace geopipe {

std::vector<ProfileCandidate> ProfileCandidates(const JobSpec& job) {
  const int64_t data = std::max<int64_t>(1, job.parallelism.data);
  std::vector<ProfileCandidate> candidates;
  for (const int64_t s : job.search.sequence_length) {
    for (const int64_t b : job.search.micro_batch_size) {
      if (job.training.tokens_per_iteration % (b * s * data) == 0) {
        candidates.push_back({b, s});
      }
    }
  }
  return candidates;
}

ProfileRounds::ProfileRounds(std::vector<ProfileCandidate> candidates, std::vector<WorkerKey> workers)
    : candidates_(std::move(candidates)), workers_(std::move(workers)), missing_(workers_.begin(), workers_.end()) {}

absl::StatusOr<bool> ProfileRounds::OnReport(const WorkerKey& worker, int32_t round, const ProfileEntry& entry) {
  if (done() || round != round_ || !missing_.contains(worker)) {
    return false;
  }
  if (entry.site != worker.site || entry.node != worker.node || entry.device != worker.device ||
      entry.micro_batch_size != candidate().micro_batch_size || entry.sequence_length != candidate().sequence_length) {
    return absl::InvalidArgumentError(fmt::format(
        "worker {} answered profiling round {} with a measurement of {} at micro_batch_size {}, sequence_length {}; {} "
        "and {} were asked for",
        DisplayName(worker), round, DisplayName(WorkerKey{entry.site, entry.node, entry.device}),
        entry.micro_batch_size, entry.sequence_length, candidate().micro_batch_size, candidate().sequence_length));
  }
  profile_.entries.push_back(entry);
  missing_.erase(worker);
  if (!missing_.empty()) {
    return false;
  }
  ++round_;
  if (!done()) {
    missing_.insert(workers_.begin(), workers_.end());
  }
  return true;
}

}  // namespace geopipe
