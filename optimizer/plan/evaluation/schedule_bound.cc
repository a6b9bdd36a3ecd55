#include "optimizer/plan/evaluation/schedule_bound.h"

#include <algorithm>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

struct Stage {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t message_ns = 0;  // to the next stage, one way
  int64_t first_ns = 0;    // earliest start of the first forward
  int64_t out_ns = 0;      // from the end of a backward to the end of the iteration, at least
  int64_t round_ns = 0;    // from the start of a forward to the end of its backward, at least
  int64_t warm_up = 0;

  int64_t both_ns() const { return forward_ns + backward_ns; }
};

std::vector<Stage> StagesOf(const PipelineCosts& costs) {
  std::vector<Stage> stages(static_cast<size_t>(costs.shape.stages));
  for (size_t p = 0; p < stages.size(); ++p) {
    stages[p].forward_ns = costs.forward_ns[p];
    stages[p].backward_ns = costs.BackwardNs(static_cast<int32_t>(p));
    if (p + 1 < stages.size()) {
      const BoundaryCost& boundary = costs.boundaries[p];
      stages[p].message_ns = boundary.serialization_ns + boundary.latency_ns + boundary.overhead_ns;
    }
    if (p > 0) {
      const Stage& before = stages[p - 1];
      stages[p].first_ns = before.first_ns + before.forward_ns + before.message_ns;
      stages[p].out_ns = before.out_ns + before.backward_ns + before.message_ns;
    }
  }
  for (size_t p = stages.size(); p-- > 0;) {
    stages[p].round_ns =
        stages[p].both_ns() + (p + 1 < stages.size() ? stages[p + 1].round_ns + 2 * stages[p].message_ns : 0);
  }
  return stages;
}

int64_t ForwardsFirstBoundNs(const std::vector<Stage>& stages, int64_t micro_batches) {
  int64_t forwards_ns = 0;  // end of the last forward of the last stage
  int64_t backwards_ns = 0;
  int64_t rest_forward_ns = 0;  // from the end of a forward of stage p to that of the last stage
  int64_t rest_backward_ns = 0;
  for (size_t p = stages.size(); p-- > 0;) {
    const Stage& stage = stages[p];
    forwards_ns = std::max(forwards_ns, stage.first_ns + micro_batches * stage.forward_ns + rest_forward_ns);
    backwards_ns = std::max(backwards_ns, rest_backward_ns + micro_batches * stage.backward_ns + stage.out_ns);
    const int64_t message_ns = p > 0 ? stages[p - 1].message_ns : 0;
    rest_forward_ns += stage.forward_ns + message_ns;
    rest_backward_ns += stage.backward_ns + message_ns;
  }
  return forwards_ns + backwards_ns;
}

// The bound of the cycles through p and q; `cycle_ns` is the time once round.
int64_t CycleBoundNs(const Stage& p, const Stage& q, int64_t cycle_ns, int64_t micro_batches) {
  const int64_t after_warm_up = micro_batches - 1 - q.warm_up;
  if (after_warm_up < 0) {
    return 0;
  }
  const int64_t advance = 1 + p.warm_up - q.warm_up;
  const int64_t last_forward_ns = q.first_ns + q.warm_up * q.forward_ns + after_warm_up / advance * cycle_ns +
                                  after_warm_up % advance * q.both_ns();
  return last_forward_ns + std::max(q.forward_ns + (q.warm_up + 1) * q.backward_ns, q.round_ns) + q.out_ns;
}

int64_t CyclesBoundNs(std::vector<Stage>& stages, int64_t micro_batches, std::span<const int32_t> boundary_delta_n) {
  const auto count = static_cast<int64_t>(stages.size());
  int64_t advance = 0;
  for (int64_t p = count - 1; p >= 0; --p) {
    advance += p + 1 < count ? boundary_delta_n[p] : 0;
    stages[p].warm_up = std::min(micro_batches, count - 1 - p + advance);
  }
  int64_t bound_ns = 0;
  for (int64_t p = 0; p < count; ++p) {
    int64_t cycle_ns = 0;
    for (int64_t q = p; q < count; ++q) {
      cycle_ns += stages[q].both_ns() + (q > p ? 2 * stages[q - 1].message_ns : 0);
      bound_ns = std::max(bound_ns, CycleBoundNs(stages[p], stages[q], cycle_ns, micro_batches));
    }
  }
  return bound_ns;
}

// The least time of any stage and any link. A stage works from its first forward to its last backward; its last forward
// comes before the way to the last stage and back, its first backward after it; each message of a link is the first or
// the last of a whole round.
int64_t UnsplitWorkNs(const std::vector<Stage>& stages, const PipelineCosts& costs) {
  const int64_t micro_batches = costs.shape.micro_batches;
  int64_t work_ns = 0;
  int64_t slowest_ns = 0;  // of the slowest part that runs m times beside one whole round
  for (const Stage& stage : stages) {
    work_ns = std::max(work_ns, stage.first_ns + micro_batches * stage.both_ns() + stage.out_ns);
    slowest_ns = std::max({slowest_ns, stage.forward_ns, stage.backward_ns});
  }
  for (const BoundaryCost& boundary : costs.boundaries) {
    slowest_ns = std::max(slowest_ns, boundary.serialization_ns);
  }
  return std::max(work_ns, stages.front().round_ns + (micro_batches - 1) * slowest_ns);
}

}  // namespace

int64_t UnsplitBoundNs(const PipelineCosts& costs) { return UnsplitWorkNs(StagesOf(costs), costs) + costs.epilogue_ns; }

int64_t ScheduleBoundNs(ScheduleKind kind, const PipelineCosts& costs, std::span<const int32_t> boundary_delta_n) {
  const ScheduleRow& row = RowOf(kind);
  if (row.splits_backward) {
    return LowerBoundNs(costs);
  }
  if (row.layout != StageLayout::kLinear) {
    PipelineCosts unsplit = costs;
    for (int32_t stage = 0; stage < costs.shape.stages; ++stage) {
      unsplit.input_grad_ns[stage] = costs.BackwardNs(stage);
    }
    unsplit.weight_grad_ns.clear();
    return LowerBoundNs(unsplit);
  }
  GP_CHECK(boundary_delta_n.size() == costs.boundaries.size() && costs.shape.stages == costs.shape.devices);
  std::vector<Stage> stages = StagesOf(costs);
  int64_t bound_ns = UnsplitWorkNs(stages, costs);
  if (row.order == ScheduleOrder::kForwardsFirst) {
    bound_ns = std::max(bound_ns, ForwardsFirstBoundNs(stages, costs.shape.micro_batches));
  } else if (row.order == ScheduleOrder::kOneByOne) {
    bound_ns = std::max(bound_ns, CyclesBoundNs(stages, costs.shape.micro_batches, boundary_delta_n));
  }
  return bound_ns + costs.epilogue_ns;
}

}  // namespace geopipe
