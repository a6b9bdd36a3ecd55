#include "optimizer/model/plan/plan_params.h"

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/model/cluster.h"

namespace geopipe {

void Plan::Append(PipelineRankPlan rank, const LayerRange& layers, int32_t node, int32_t first_device) {
  std::vector<DevicePlace> places;
  places.reserve(static_cast<size_t>(grid.data) * static_cast<size_t>(grid.tensor));
  for (int32_t i = 0; i < grid.data * grid.tensor; ++i) {
    places.push_back({.node = node, .device = first_device + i});
  }
  Append(std::move(rank), layers, places);
}

void Plan::Append(PipelineRankPlan rank, const LayerRange& layers, std::span<const DevicePlace> places) {
  GP_CHECK(std::ssize(places) == int64_t{grid.data} * grid.tensor);
  stages.push_back({.pipeline_rank = static_cast<int32_t>(pipeline_ranks.size()), .layers = layers});
  pipeline_ranks.push_back(std::move(rank));
  grid.pipeline = static_cast<int32_t>(pipeline_ranks.size());
  devices.insert(devices.end(), places.begin(), places.end());
}

std::optional<Recompute> Plan::SameRecompute() const {
  const auto differs = [&](const PipelineRankPlan& rank) { return rank.recompute != pipeline_ranks.front().recompute; };
  return pipeline_ranks.empty() || std::ranges::any_of(pipeline_ranks, differs)
             ? std::nullopt
             : std::optional(pipeline_ranks.front().recompute);
}

void Plan::SetRecompute(Recompute recompute) {
  for (PipelineRankPlan& rank : pipeline_ranks) {
    rank.recompute = recompute;
  }
}

std::vector<int32_t> Plan::Crossings() const {
  std::vector<int32_t> crossings;
  for (int32_t boundary = 0; boundary + 1 < std::ssize(stages); ++boundary) {
    if (SiteOfGroup(SiteOf(boundary)) != SiteOfGroup(SiteOf(boundary + 1))) {
      crossings.push_back(boundary);
    }
  }
  return crossings;
}

std::span<const DevicePlace> Plan::DevicesOf(int32_t pipeline_rank) const {
  const size_t count = static_cast<size_t>(grid.data) * static_cast<size_t>(grid.tensor);
  return std::span(devices).subspan(static_cast<size_t>(pipeline_rank) * count, count);
}

PipelineShape Plan::Shape() const {
  PipelineShape shape{.devices = grid.pipeline,
                      .stages = static_cast<int32_t>(stages.size()),
                      .micro_batches = micro_batches,
                      .placement = {}};
  for (const StagePlan& stage : stages) {
    shape.placement.push_back(stage.pipeline_rank);
  }
  return shape;
}

std::vector<int32_t> BoundaryDeltaN(const Plan& plan) {
  const std::vector<int32_t> crossings = plan.Crossings();
  GP_CHECK(crossings.size() == plan.delta_n.size(), "plan has {} delta_n for {} crossings", plan.delta_n.size(),
           crossings.size());
  std::vector<int32_t> boundary_delta_n(plan.stages.size() - 1, 0);
  for (size_t i = 0; i < crossings.size(); ++i) {
    boundary_delta_n[crossings[i]] = plan.delta_n[i];
  }
  return boundary_delta_n;
}

}  // namespace geopipe
