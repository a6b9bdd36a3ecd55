#include "optimizer/plan/space/layer_split.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {

std::vector<StageLoad> LoadsOf(const PlanParts& parts, int64_t layers) {
  const auto whole = [](const PartCosts& part) { return part.forward_ns + part.input_grad_ns + part.weight_grad_ns; };
  std::vector<StageLoad> loads(static_cast<size_t>(parts.shape.devices));
  for (size_t stage = 0; stage < parts.stages.size(); ++stage) {
    const ModelCosts& costs = parts.stages[stage].costs;
    StageLoad& load = loads[parts.shape.placement[stage]];
    load.fixed_ns +=
        (stage == 0 ? whole(costs.embedding) : 0) + (stage + 1 == parts.stages.size() ? whole(costs.head) : 0);
    load.layer_ns = whole(costs.block);
    load.most = layers;
  }
  return loads;
}

namespace {

// Adds to `split`, of one layer each, the layers that every stage can have within a time in which all have at most
// `more` together: given one at a time, layers would go there first. Returns their number.
int64_t GiveAtOnce(std::span<const StageLoad> stages, int64_t more, std::vector<int32_t>& split) {
  constexpr double kForever = 1e18;
  double time_ns = kForever;
  for (bool fell = true; fell;) {  // of the stages that can have more in the time of before
    double rate = 0;               // layers a nanosecond
    double layers = static_cast<double>(more);
    for (const StageLoad& stage : stages) {
      const auto first_ns = static_cast<double>(stage.fixed_ns + stage.layer_ns);
      if (stage.layer_ns > 0 && first_ns < time_ns) {
        rate += 1 / static_cast<double>(stage.layer_ns);
        layers += first_ns / static_cast<double>(stage.layer_ns);
      }
    }
    fell = rate > 0 && layers / rate < time_ns;
    time_ns = fell ? layers / rate : time_ns;
  }
  int64_t given = 0;
  std::vector<int32_t> all = split;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].layer_ns <= 0 || time_ns >= kForever) {
      return 0;
    }
    const int64_t within = (static_cast<int64_t>(time_ns) - stages[i].fixed_ns) / stages[i].layer_ns;
    all[i] = static_cast<int32_t>(std::max<int64_t>(1, std::min(stages[i].most, within)));
    given += all[i] - 1;
  }
  if (given > more) {
    return 0;
  }
  split = std::move(all);
  return given;
}

}  // namespace

std::optional<std::vector<int32_t>> BalanceLayers(std::span<const StageLoad> stages, int64_t layers) {
  const auto count = static_cast<int64_t>(stages.size());
  int64_t room = 0;
  for (const StageLoad& stage : stages) {
    if (stage.most < 1) {
      return std::nullopt;
    }
    room += std::min(stage.most, layers);
  }
  if (layers < count || room < layers) {
    return std::nullopt;
  }
  std::vector<int32_t> split(stages.size(), 1);
  for (int64_t left = layers - count - GiveAtOnce(stages, layers - count, split); left > 0; --left) {
    // The least of (time with one more layer, distance from the centre (doubled), negated index) is best.
    std::tuple<int64_t, int64_t, int64_t> best{std::numeric_limits<int64_t>::max(), 0, 0};
    for (int64_t stage = 0; stage < count; ++stage) {
      if (split[stage] < stages[stage].most) {
        const int64_t time_ns = stages[stage].fixed_ns + (split[stage] + 1) * stages[stage].layer_ns;
        best = std::min(best, std::tuple(time_ns, std::abs(2 * stage - (count - 1)), -stage));
      }
    }
    ++split[-std::get<2>(best)];
  }
  return split;
}

int64_t LeastStageTimeNs(std::span<const StageLoad> stages, int64_t layers) {
  std::vector<StageLoad> boundless(stages.begin(), stages.end());
  for (StageLoad& stage : boundless) {
    stage.most = layers;
  }
  const auto split = BalanceLayers(boundless, layers);
  GP_CHECK(split.has_value());
  int64_t largest_ns = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    largest_ns = std::max(largest_ns, stages[stage].fixed_ns + (*split)[stage] * stages[stage].layer_ns);
  }
  return largest_ns;
}

std::vector<LayerRange> RangesOf(std::span<const int32_t> layers) {
  std::vector<LayerRange> ranges;
  int64_t next = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    ranges.push_back({.first = next,
                      .last = next + layers[stage] - 1,
                      .has_embedding = stage == 0,
                      .has_head = stage + 1 == layers.size()});
    next += layers[stage];
  }
  return ranges;
}

std::vector<int32_t> CountsOf(std::span<const LayerRange> ranges) {
  std::vector<int32_t> counts;
  for (const LayerRange& range : ranges) {
    counts.push_back(static_cast<int32_t>(range.count()));
  }
  return counts;
}

}  // namespace geopipe
