#include "proto/wire/control_wire.h"

#include <string>

#include "optimizer/base/status_macros.h"
#include "proto/wire/fields.h"

namespace geopipe {

v1::Baseline ToProto(const Baseline& baseline) {
  v1::Baseline message;
  message.set_schedule(std::string(ScheduleKindName(baseline.schedule)));
  message.set_comm(std::string(CommModeName(baseline.comm)));
  message.set_scope(std::string(BaselineScopeName(baseline.scope)));
  message.set_site(baseline.site);
  message.set_micro_batch_size(baseline.micro_batch_size);
  message.set_sequence_length(baseline.sequence_length);
  message.set_iteration_ns(baseline.iteration_ns);
  message.set_bubble_ratio(baseline.bubble_ratio);
  message.set_fits(baseline.fits);
  return message;
}

absl::StatusOr<Baseline> FromProto(const v1::Baseline& message) {
  constexpr int64_t kMaxSize = int64_t{1} << 24;
  GP_ASSIGN_OR_RETURN(const ScheduleKind schedule, ParseScheduleKind(message.schedule()));
  GP_ASSIGN_OR_RETURN(const CommMode comm, ParseCommMode(message.comm()));
  GP_ASSIGN_OR_RETURN(const BaselineScope scope, ParseBaselineScope(message.scope()));
  GP_RETURN_IF_ERROR(wire::CheckText("site", message.site(), wire::kMaxNameBytes));
  GP_RETURN_IF_ERROR(wire::CheckRange("micro_batch_size", message.micro_batch_size(), 0, kMaxSize));
  GP_RETURN_IF_ERROR(wire::CheckRange("sequence_length", message.sequence_length(), 0, kMaxSize));
  GP_RETURN_IF_ERROR(wire::CheckDuration("iteration_ns", message.iteration_ns()));
  GP_RETURN_IF_ERROR(wire::CheckFinite("bubble_ratio", message.bubble_ratio(), 0));
  return Baseline{.schedule = schedule,
                  .comm = comm,
                  .scope = scope,
                  .site = message.site(),
                  .micro_batch_size = message.micro_batch_size(),
                  .sequence_length = message.sequence_length(),
                  .iteration_ns = message.iteration_ns(),
                  .bubble_ratio = message.bubble_ratio(),
                  .fits = message.fits()};
}

absl::StatusOr<std::vector<std::vector<ActionTiming>>> ActionsOf(const v1::IterationTimeline& timeline,
                                                                 const Plan& plan) {
  const ProcessGrid& grid = plan.grid;
  if (timeline.ranks_size() != grid.size()) {
    return absl::InvalidArgumentError(
        fmt::format("ranks has {} entries; the grid makes it {}", timeline.ranks_size(), grid.size()));
  }
  std::vector<std::vector<ActionTiming>> actions;
  for (int32_t pipeline = 0; pipeline < grid.pipeline; ++pipeline) {
    const v1::RankTimeline& line = timeline.ranks(grid.IndexOf({.pipeline = pipeline}));
    std::vector<ActionTiming>& row = actions.emplace_back();
    row.reserve(line.actions_size());
    for (const v1::ActionTiming& timing : line.actions()) {
      GP_ASSIGN_OR_RETURN(const Action action, ParseAction(timing.action()));
      GP_RETURN_IF_ERROR(wire::CheckRange("stage of an action", action.stage, 0, std::ssize(plan.stages) - 1));
      row.push_back({action, timing.start_ns(), timing.end_ns()});
    }
  }
  return actions;
}

std::string_view JobStateName(v1::JobState state) {
  constexpr std::string_view kPrefix = "JOB_STATE_";
  const std::string_view name = v1::JobState_Name(state);
  return state == v1::JOB_STATE_UNSPECIFIED || name.empty() ? "UNKNOWN" : name.substr(kPrefix.size());
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

}  // namespace geopipe
