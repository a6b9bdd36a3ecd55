#include "optimizer/scheduler/relaxed_bound.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "optimizer/scheduler/reduced_pipeline.h"
#include "optimizer/simulator/device_bound.h"

namespace geopipe {
namespace {

// Stages to begin with: those that alone limit the pipeline most.
constexpr size_t kMaxSeeds = 2;
// Part of the remaining work for one selection of stages: one in kParts.
constexpr int64_t kParts = 2;
constexpr int64_t kShares = 4;
constexpr int64_t kMinStates = 1'000;
// Fewest partial schedules for each action that a selection costs, whatever its share.
constexpr int64_t kMinStatesPerAction = 3;
constexpr int64_t kMaxStates = 120'000;

// Cost of the set-up, in evaluations.
constexpr int64_t kSetUp = 6;

using Selection = std::vector<int32_t>;

Selection Between(int32_t first, int32_t last) {
  Selection stages(static_cast<size_t>(last - first) + 1);
  std::iota(stages.begin(), stages.end(), first);
  return stages;
}

// Selections around `seed`, those first that prove much at little cost: with the stage above it and the last one; then
// more and more of those above it, which its round trips pass; then more and more below it.
std::vector<Selection> SelectionsAround(int32_t seed, int32_t stages) {
  const int32_t last = stages - 1;
  std::vector<Selection> selections = {{seed}, Between(seed, std::min(seed + 1, last))};
  if (seed + 2 < last) {
    selections.push_back({seed, seed + 1, last});
  }
  for (const int32_t count : {4, 6, 9, 13, 19}) {
    if (seed + count < stages) {
      selections.push_back(Between(seed, seed + count - 1));
    }
  }
  selections.push_back(Between(seed, last));
  for (int32_t below = 1; below <= seed; below *= 2) {
    selections.push_back(Between(seed - below, last));
  }
  return selections;
}

// All stages, those first that alone limit the pipeline most.
std::vector<int32_t> Seeds(const Reducer& reducer, int32_t stages) {
  std::vector<std::pair<int64_t, int32_t>> roots;
  roots.reserve(static_cast<size_t>(stages));
  for (int32_t stage = 0; stage < stages; ++stage) {
    roots.emplace_back(-RootBoundNs(reducer.Reduce(Selection{stage})), stage);
  }
  std::sort(roots.begin(), roots.end());
  std::vector<int32_t> seeds;
  seeds.reserve(roots.size());
  for (const auto& [bound_ns, stage] : roots) {
    seeds.push_back(stage);
  }
  return seeds;
}

}  // namespace

bool StatesCanBeSearched(const PipelineCosts& costs) {
  const std::set<int32_t> devices(costs.shape.placement.begin(), costs.shape.placement.end());
  return std::ssize(devices) == costs.shape.stages && (!costs.memory.has_value() || OneMicroBatchFits(costs));
}

int64_t ActionsPerState(size_t stages) { return 15 + 3 * static_cast<int64_t>(stages); }

RelaxedBound FindRelaxedBound(const PipelineCosts& costs, const RelaxedBoundOptions& options) {
  RelaxedBound result;
  const int64_t per_stage = int64_t{costs.shape.micro_batches} * (costs.weight_grad_ns.empty() ? 2 : 3);
  result.actions = kSetUp * per_stage * costs.shape.stages;
  if (result.actions >= options.actions) {
    result.actions = 0;
    return result;
  }
  const Reducer reducer(costs);
  result.bound_ns = std::min(options.known_ns, WindowBoundNs(reducer.Reduce(Between(0, costs.shape.stages - 1))));
  const std::vector<int32_t> seeds = Seeds(reducer, costs.shape.stages);
  std::set<Selection> tried;
  for (size_t i = 0; i < std::min(kMaxSeeds, seeds.size()); ++i) {
    for (const Selection& selection : SelectionsAround(seeds[i], costs.shape.stages)) {
      const int64_t layers = per_stage * std::ssize(selection);
      const int64_t left = (options.actions - result.actions - layers) / ActionsPerState(selection.size());
      const bool stopped = options.stop && options.stop();
      if (stopped || left < std::max(kMinStates, kParts * kMinStatesPerAction * layers) ||
          result.bound_ns >= options.known_ns || !tried.insert(selection).second) {
        continue;
      }
      const ReducedPipeline pipeline = reducer.Reduce(selection);
      const int64_t states = std::clamp(left / kParts, kMinStates, kMaxStates);
      const StateSearchResult found =
          StateSearch(pipeline).Run({.shorter_than_ns = options.known_ns, .states = states, .shares = kShares});
      result.bound_ns = std::max(result.bound_ns, found.bound_ns);
      result.actions += layers + found.states * ActionsPerState(selection.size());
    }
  }
  return result;
}

}  // namespace geopipe
