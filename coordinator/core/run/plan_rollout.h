// Two-phase roll-out of one plan under one epoch: prepare on every rank's worker, and only when all have answered
// commit on all. No two sites ever run different epochs, because no worker is told to commit before every worker of the
// epoch is prepared. Answers of another epoch are ignored.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/names.h"
#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/process_grid.h"

namespace geopipe {

class PlanRollout {
 public:
  enum class Phase : uint8_t { kPreparing, kCommitting, kCommitted };

  PlanRollout() = default;
  // `workers[r]` is rank r of the grid. REQUIRES: as many as it has. `committed`: by all, in an earlier life of the
  // coordinator.
  PlanRollout(uint64_t epoch, const ProcessGrid& grid, std::vector<WorkerKey> workers, bool committed = false);

  uint64_t epoch() const { return epoch_; }
  Phase phase() const { return phase_; }
  const std::vector<WorkerKey>& workers() const { return workers_; }
  // -1: the worker is no rank of the plan.
  int32_t RankOf(const WorkerKey& worker) const;
  // Workers that have not answered the phase under way, in order of rank.
  std::vector<WorkerKey> Missing() const;
  // Addresses of all ranks. REQUIRES: phase() is past kPreparing.
  std::vector<v1::Peer> Peers() const;

  // Says which stage computes on or with something else than the first, so that results depend on where its layers lie;
  // empty when none does. REQUIRES: as Peers().
  std::string Mixture() const;

  // True when the answer completed the phase. FailedPrecondition when two ranks have read different training or
  // validation data, or compute with different numbers of threads (sums would be split differently, and a run could not
  // be repeated to the bit), or when tensor or data ranks of a stage compute on different instructions or devices, or
  // with different libraries (replicas would drift apart); InvalidArgument when the answer is for a rank that the
  // worker was not given.
  absl::StatusOr<bool> OnPrepared(const WorkerKey& worker, uint64_t epoch, const v1::PreparedReport& report);
  absl::StatusOr<bool> OnCommitted(const WorkerKey& worker, uint64_t epoch, const v1::CommittedReport& report);

 private:
  struct Answer {
    bool given = false;
    std::string address;
    int64_t data_bytes = 0;
    uint64_t data_checksum = 0;
    int64_t validation_bytes = 0;
    uint64_t validation_checksum = 0;
    int32_t threads = 0;
    std::vector<std::string> traits;  // in the order of plan_rollout.cc's table
  };
  // The first trait in which two ranks differ; absent: none.
  struct Difference {
    size_t trait = 0;
    std::string text;  // "north/n0/0 computes on AMX and west/n0/0 on AVX2"
  };

  absl::StatusOr<bool> Mark(const WorkerKey& worker, uint64_t epoch, Phase phase, int32_t rank, Answer** answer);
  absl::Status CheckData(std::string_view which, int64_t Answer::*bytes, uint64_t Answer::*checksum) const;
  absl::Status CheckThreads() const;
  std::optional<Difference> Compare(int32_t rank, int32_t other) const;
  absl::Status CheckReplicas() const;

  uint64_t epoch_ = 0;
  ProcessGrid grid_;
  Phase phase_ = Phase::kPreparing;
  std::vector<WorkerKey> workers_;
  std::vector<Answer> answers_;
};

}  // namespace geopipe
