// Values that a rank is prepared with, from a PrepareCommand.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "geopipe/v1/worker_service.pb.h"
#include "optimizer/model/checkpoint_identity.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/pipeline_costs.h"
#include "optimizer/model/plan/plan_params.h"
#include "optimizer/model/run_options.h"
#include "optimizer/model/state_identity.h"
#include "optimizer/schedule/schedule.h"
#include "runtime/checkpoint/checkpoint_root.h"
#include "runtime/checkpoint/exchange/checkpoint_fetcher.h"
#include "runtime/model/parameters.h"

namespace geopipe {

struct RankPreparation {
  uint64_t epoch = 0;
  JobSpec job;
  Plan plan;
  Schedule schedule;  // lowered
  int32_t rank = 0;   // in plan.grid
  PipelineCosts costs;
  RunOptions run;
  int64_t memory_limit_bytes = 0;   // 0: none
  int64_t staging_limit_bytes = 0;  // of the host's memory for data to and from the device; 0: none
  int32_t threads = 1;
  std::vector<v1::LinkShape> shapes;
  int64_t first_iteration = 0;   // the state before it is what the epoch goes on from
  uint64_t state_epoch = 0;      // of that state
  uint64_t run_incarnation = 0;  // of the run of the job
  std::optional<CheckpointIdentity>
      from_checkpoint;                       // the state is read from it; nullopt: it is held or kept, or given
  std::optional<int32_t> state_of_rank;      // the replica that gives it to those that lack it; nullopt: none does
  int64_t given_state_bytes = 0;             // to a rank of the epoch, at most: the others wait for it
  std::vector<ExchangeSource> file_sources;  // whom to ask for files of it that are not here, in this order
  std::string exchange_secret;               // that workers prove to each other; empty: none exchange files
  CheckpointMark checkpoint_mark;            // of the job's checkpoint.path
  std::string gpu_library;                   // of this worker (CanOpen in runtime/compute/open.h)

  StateIdentity state() const { return {.iteration = first_iteration, .epoch = state_epoch}; }
  int32_t pipeline_rank() const { return plan.grid.At(rank).pipeline; }
  // The rank's place among those that divide its stages.
  ParameterSharding sharding() const;
};

// Converts and checks that the parts fit each other: plan, schedule and costs of the same shape, a valid schedule, and
// nothing that no worker can run (a backend without what the job needs, rendezvous). InvalidArgument names the key, its
// value and the remedy.
absl::StatusOr<RankPreparation> DecodePreparation(uint64_t epoch, const v1::PrepareCommand& command);

// Returns the other ranks of the plan at the rank's site.
std::set<int32_t> RanksOfSite(const Plan& plan, int32_t rank);
// The site of each rank.
std::vector<std::string> SitesOfRanks(const Plan& plan);

}  // namespace geopipe
