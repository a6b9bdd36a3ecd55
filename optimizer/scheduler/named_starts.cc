#include "optimizer/scheduler/named_starts.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

constexpr std::array<int64_t, 7> kQuarters = {1, 2, 3, 4, 5, 6, 8};

}  // namespace

std::vector<std::vector<int32_t>> HidingDeltaN(const PipelineCosts& costs) {
  int64_t work_ns = 0;
  for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
    work_ns = std::max(work_ns, costs.forward_ns[stage] + costs.BackwardNs(stage));
  }
  std::vector<std::vector<int32_t>> tries;
  for (const int64_t quarters : kQuarters) {
    std::vector<int32_t>& delta_n = tries.emplace_back();
    for (const BoundaryCost& cost : costs.boundaries) {
      const int64_t delay_ns = cost.latency_ns + cost.serialization_ns + cost.overhead_ns;
      const int64_t hides = cost.crosses && work_ns > 0 ? (2 * delay_ns + work_ns - 1) / work_ns : 0;
      const int64_t most = costs.shape.micro_batches;
      delta_n.push_back(static_cast<int32_t>((std::min(hides, most) * quarters + 3) / 4));
    }
  }
  return tries;
}

std::vector<Schedule> MakeNamedStarts(const PipelineCosts& costs) {
  std::vector<Schedule> starts;
  const ScheduleCosts schedule_costs = ScheduleCostsOf(costs);
  const auto add_if = [&](auto wanted, std::span<const int32_t> delta_n) {
    for (const ScheduleRow& row : kSchedules) {
      if (wanted(row)) {
        // An error only says that the rule is not defined for this shape or for these costs.
        absl::StatusOr<Schedule> schedule = MakeSchedule(row.kind, costs.shape, delta_n, schedule_costs);
        if (schedule.ok() && std::ranges::find(starts, *schedule) == starts.end()) {
          starts.push_back(*std::move(schedule));
        }
      }
    }
  };
  const auto holds_all = [](const ScheduleRow& row) { return row.order == ScheduleOrder::kForwardsFirst; };
  add_if([&](const ScheduleRow& row) { return !row.uses_delta_n && !holds_all(row); }, {});
  for (const std::vector<int32_t>& delta_n : HidingDeltaN(costs)) {
    add_if([](const ScheduleRow& row) { return row.uses_delta_n; }, delta_n);
  }
  add_if(holds_all, {});
  return starts;
}

}  // namespace geopipe
