#include "coordinator/cli/job_memory.h"

#include <fmt/format.h>

#include "optimizer/base/status_macros.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"

namespace geopipe {

absl::StatusOr<std::vector<StageRanksMemory>> MemoryOfJob(const v1::JobDetail& detail) {
  std::vector<StageRanksMemory> all;
  if (detail.planned_memory_size() == 0) {
    return all;
  }
  GP_ASSIGN_OR_RETURN(const Plan plan, FromProto(detail.plan()));
  if (detail.planned_memory_size() != plan.grid.pipeline) {
    return absl::InvalidArgumentError(fmt::format("planned_memory has {} entries; the plan has {} pipeline ranks",
                                                  detail.planned_memory_size(), plan.grid.pipeline));
  }
  const int32_t ranks = plan.grid.data * plan.grid.tensor;
  for (int32_t rank = 0; rank < plan.grid.pipeline; ++rank) {
    StageRanksMemory& stage = all.emplace_back();
    stage.site = plan.pipeline_ranks[rank].site;
    stage.first_rank = rank * ranks;
    stage.ranks = ranks;
    GP_ASSIGN_OR_RETURN(stage.planned, FromProto(detail.planned_memory(rank)));
  }
  for (const v1::MeasuredMemory& measured : detail.measured_memory()) {
    if (measured.rank() < 0 || measured.rank() >= plan.grid.size()) {
      return absl::InvalidArgumentError(
          fmt::format("measured_memory is of rank {}; the plan has {} ranks", measured.rank(), plan.grid.size()));
    }
    GP_ASSIGN_OR_RETURN(const RankMemory peaks, FromProto(measured.peaks()));
    all[measured.rank() / ranks].measured.push_back({.rank = measured.rank(), .peaks = peaks});
  }
  return all;
}

}  // namespace geopipe
