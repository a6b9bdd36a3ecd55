#include "runtime/worker/rank_preparation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/schedule/forward_only.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/validate.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

absl::Status CheckRunnable(const RankPreparation& preparation) {
  GP_RETURN_IF_ERROR(CheckCapabilities(preparation.job, preparation.run.backend));
  if (preparation.plan.comm == CommMode::kRendezvous) {
    return absl::InvalidArgumentError("comm rendezvous can be simulated but not run; use nonblocking or blocking");
  }
  return absl::OkStatus();
}

absl::Status CheckGiver(const RankPreparation& preparation) {
  const std::vector<int32_t> replicas = preparation.plan.grid.ReplicasOf(preparation.rank);
  if (preparation.given_state_bytes < 0) {
    return absl::InvalidArgumentError(
        fmt::format("prepare.given_state_bytes is {}; it cannot be negative", preparation.given_state_bytes));
  }
  if (!preparation.state_of_rank.has_value()) {
    return absl::OkStatus();
  }
  if (preparation.plan.zero_stage > 0 || replicas.size() < 2 ||
      std::ranges::find(replicas, *preparation.state_of_rank) == replicas.end()) {
    return absl::InvalidArgumentError(
        fmt::format("prepare.state_of_rank is {}, which has another state than rank {}: only replicas whose states are "
                    "not divided (zero_stage 0) can give it",
                    *preparation.state_of_rank, preparation.rank));
  }
  return absl::OkStatus();
}

absl::Status CheckShapes(const RankPreparation& preparation) {
  const PipelineShape shape = preparation.plan.Shape();
  if (preparation.schedule.shape != shape || preparation.costs.shape != shape) {
    return absl::InvalidArgumentError(fmt::format(
        "prepare: plan, schedule and costs are not of one shape ({} stages on {} pipeline ranks, {} micro-batches)",
        shape.stages, shape.devices, shape.micro_batches));
  }
  if (preparation.rank < 0 || preparation.rank >= preparation.plan.grid.size()) {
    return absl::InvalidArgumentError(
        fmt::format("prepare.rank is {}; the plan has {} ranks", preparation.rank, preparation.plan.grid.size()));
  }
  GP_RETURN_IF_ERROR(Validate(preparation.schedule));
  if (preparation.job.evaluates()) {
    GP_RETURN_IF_ERROR(Validate(ForwardOnly(preparation.schedule), {}, nullptr, ScheduleWork::kForwards));
  }
  GP_ASSIGN_OR_RETURN(const Schedule lowered, Lower(DropCommunication(preparation.schedule)));
  return preparation.schedule == lowered
             ? absl::OkStatus()
             : absl::InvalidArgumentError("prepare.schedule is not lowered: sends and receives are missing");
}

}  // namespace

ParameterSharding RankPreparation::sharding() const {
  const Rank place = plan.grid.At(rank);
  return {.tensor = plan.grid.tensor,
          .tensor_rank = place.tensor,
          .data = plan.grid.data,
          .data_rank = place.data,
          .zero_stage = plan.zero_stage,
          .sequence_parallel = job.parallelism.sequence_parallel,
          .precision = job.precision,
          .offloads_optimizer = job.parallelism.offload == Offload::kOptimizer};
}

std::set<int32_t> RanksOfSite(const Plan& plan, int32_t rank) {
  std::set<int32_t> near;
  for (int32_t peer = 0; peer < plan.grid.size(); ++peer) {
    if (peer != rank && plan.SiteOfRank(peer) == plan.SiteOfRank(rank)) {
      near.insert(peer);
    }
  }
  return near;
}

std::vector<std::string> SitesOfRanks(const Plan& plan) {
  std::vector<std::string> sites;
  for (int32_t rank = 0; rank < plan.grid.size(); ++rank) {
    sites.push_back(plan.SiteOfRank(rank));
  }
  return sites;
}

absl::StatusOr<RankPreparation> DecodePreparation(uint64_t epoch, const v1::PrepareCommand& command) {
  RankPreparation preparation;
  preparation.epoch = epoch;
  GP_ASSIGN_OR_RETURN(preparation.job, ParseManifest(command.manifest()));
  GP_ASSIGN_OR_RETURN(preparation.plan, FromProto(command.plan()));
  GP_ASSIGN_OR_RETURN(preparation.schedule, FromProto(command.schedule()));
  GP_ASSIGN_OR_RETURN(preparation.costs, FromProto(command.costs()));
  GP_ASSIGN_OR_RETURN(preparation.run, FromProto(command.run()));
  preparation.rank = command.rank();
  preparation.memory_limit_bytes = command.memory_limit_bytes();
  preparation.staging_limit_bytes = command.staging_limit_bytes();
  preparation.threads = command.threads() > 0 ? command.threads() : 1;
  preparation.first_iteration = command.first_iteration();
  preparation.state_epoch = command.state_epoch();
  preparation.run_incarnation = command.run_incarnation();
  if (command.has_from_checkpoint()) {
    GP_ASSIGN_OR_RETURN(preparation.from_checkpoint, FromProto(command.from_checkpoint()));
  }
  if (command.has_state_of_rank()) {
    preparation.state_of_rank = command.state_of_rank();
  }
  preparation.given_state_bytes = command.given_state_bytes();
  for (const v1::FileSource& source : command.file_sources()) {
    preparation.file_sources.push_back({.site = source.site(), .address = source.address()});
  }
  preparation.checkpoint_mark = {.id = command.checkpoint_mark().id(),
                                 .expected = command.checkpoint_mark().expected()};
  preparation.exchange_secret = command.exchange_secret();
  preparation.shapes.assign(command.shapes().begin(), command.shapes().end());
  GP_RETURN_IF_ERROR(CheckShapes(preparation));
  GP_RETURN_IF_ERROR(CheckGiver(preparation));
  GP_RETURN_IF_ERROR(CheckRunnable(preparation));
  return preparation;
}

}  // namespace geopipe
