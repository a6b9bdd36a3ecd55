// Rounds of profiling: every worker of a job measures one (b, s) at the same time, because that is how they will run;
// the next round begins when all have reported.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <set>
#include <vector>

#include "coordinator/core/names.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"

namespace geopipe {

struct ProfileCandidate {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;

  friend bool operator==(const ProfileCandidate&, const ProfileCandidate&) = default;
};

// The (b, s) of the job's search that divide an iteration's tokens: the others cannot be planned.
std::vector<ProfileCandidate> ProfileCandidates(const JobSpec& job);

class ProfileRounds {
 public:
  ProfileRounds() = default;
  ProfileRounds(std::vector<ProfileCandidate> candidates, std::vector<WorkerKey> workers);

  bool done() const { return round_ == static_cast<int32_t>(candidates_.size()); }
  int32_t round() const { return round_; }
  int32_t rounds() const { return static_cast<int32_t>(candidates_.size()); }
  // REQUIRES: !done().
  const ProfileCandidate& candidate() const { return candidates_[round_]; }
  // Workers that have not reported this round, in order.
  std::vector<WorkerKey> missing() const { return {missing_.begin(), missing_.end()}; }
  const Profile& profile() const { return profile_; }

  // Takes one worker's measurement. True when it was the round's last: the next round (if any) has begun. Reports of
  // other rounds and second reports are ignored. InvalidArgument when the entry is not what the round asked for.
  absl::StatusOr<bool> OnReport(const WorkerKey& worker, int32_t round, const ProfileEntry& entry);

 private:
  std::vector<ProfileCandidate> candidates_;
  std::vector<WorkerKey> workers_;
  int32_t round_ = 0;
  std::set<WorkerKey> missing_;
  Profile profile_;
};

}  // namespace geopipe
