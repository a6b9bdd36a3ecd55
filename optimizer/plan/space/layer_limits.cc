#include "optimizer/plan/space/layer_limits.h"

#include <algorithm>
#include <cstddef>

namespace geopipe {

LayerLimits::LayerLimits(const Plan& plan, const PlanParts& parts, const PlanMemoryModel& memory, int64_t layers)
    : micro_batches_(plan.micro_batches), loads_(LoadsOf(parts, layers)), need_(plan.stages.size()) {
  for (const StagePlan& stage : plan.stages) {
    placement_.push_back(stage.pipeline_rank);
  }
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    capacity_bytes_.push_back(rank.capacity_bytes);
  }
  const std::vector<StageFlow> flows = FlowsOf(std::vector<int64_t>(need_.size(), 1), plan.comm);
  const int64_t most = layers - std::ssize(need_) + 1;
  for (size_t stage = 0; stage < need_.size(); ++stage) {
    for (int64_t count = 1; count <= most; ++count) {
      const LayerRange last{.first = layers - count,  // whose norm terms are the shortest
                            .last = layers - 1,
                            .has_embedding = stage == 0,
                            .has_head = stage + 1 == need_.size()};
      need_[stage].push_back(memory.Needs(static_cast<int32_t>(stage), last).At(flows[stage]));
    }
  }
}

std::vector<int64_t> LayerLimits::Most() const {
  std::vector<int64_t> most;
  for (size_t stage = 0; stage < need_.size(); ++stage) {
    const int64_t capacity_bytes = capacity_bytes_[placement_[stage]];
    most.push_back(std::ranges::count_if(need_[stage], [&](const StageMemory& need) {
      return need.static_bytes() + need.activation_bytes <= capacity_bytes;
    }));
  }
  return most;
}

int64_t LayerLimits::WorkNs(std::span<const int64_t> layers) const {
  std::vector<int64_t> work_ns;
  for (const StageLoad& load : loads_) {
    work_ns.push_back(load.fixed_ns);
  }
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    work_ns[placement_[stage]] += layers[stage] * loads_[placement_[stage]].layer_ns;
  }
  return micro_batches_ * *std::ranges::max_element(work_ns);
}

bool LayerLimits::HasRoom(std::span<const int64_t> layers) const {
  std::vector<StageMemory> of_ranks(capacity_bytes_.size());
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    StageMemory& of_rank = of_ranks[placement_[stage]];
    of_rank += need_[stage][static_cast<size_t>(layers[stage]) - 1];
    if (of_rank.static_bytes() + of_rank.activation_bytes > capacity_bytes_[placement_[stage]]) {
      return false;
    }
  }
  return true;
}

}  // namespace geopipe
