// Rounds of profiling: every worker of a job measures one (b, s) at the same time, because that is how they will run;
// the next round begins when all have reported.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/cluster/allocation.h"
#include "coordinator/cluster/names.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/profile.h"
#include "optimizer/model/run_options.h"

namespace geopipe {

// The measurements that one round asks for.
struct ProfileCandidate {
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  bool skip_compute = false;  // sizes are not set then
  int64_t message_bytes = 0;  // also measure messages of this size; 0: none

  friend bool operator==(const ProfileCandidate&, const ProfileCandidate&) = default;
};

// Rounds for the (b, s) of the job's search that divide an iteration's tokens: the others cannot be planned. One round
// without any where the costs of computing are given (explicit costs, the modelled backend, paced workers that stand
// for other devices). The first round measures messages, of the largest size that the job sends or
// kMaxProfiledMessageBytes, unless `workers` is 1. Empty when nothing has to be measured and no checkpoints have to be
// found.
std::vector<ProfileCandidate> ProfileCandidates(const JobSpec& job, const RunOptions& run, size_t workers,
                                                bool stand_for_devices = false);

// True when all workers of a paced run stand for devices whose speed is described, that is, not for the host's
// processors, whose figures say less than a measurement.
bool StandForDevices(const RunOptions& run, const Allocation& allocation);

// Largest message that is measured; the cost of larger ones is in proportion.
inline constexpr int64_t kMaxProfiledMessageBytes = int64_t{4} << 20;

// Results of one worker in one round.
struct Measurement {
  std::optional<ProfileEntry> entry;   // unless skip_compute
  std::optional<MessageCost> message;  // if message_bytes
};
// InvalidArgument: a part that does not validate.
absl::StatusOr<Measurement> MeasurementOf(const v1::ProfileReport& report);

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
  bool awaits(const WorkerKey& worker) const { return missing_.contains(worker); }
  const Profile& profile() const { return profile_; }

  // Takes one worker's measurement. True when it was the round's last: the next round (if any) has begun. Reports of
  // other rounds and second reports are ignored. InvalidArgument when it is not what the round asked for.
  absl::StatusOr<bool> OnReport(const WorkerKey& worker, int32_t round, const Measurement& measurement);

 private:
  absl::Status CheckMeasurement(const WorkerKey& worker, const Measurement& measurement) const;

  std::vector<ProfileCandidate> candidates_;
  std::vector<WorkerKey> workers_;
  int32_t round_ = 0;
  std::set<WorkerKey> missing_;
  Profile profile_;
};

}  // namespace geopipe
