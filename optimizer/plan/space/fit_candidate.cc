#include "optimizer/plan/space/fit_candidate.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/space/layer_split.h"

namespace geopipe {
namespace {

// The point's loads, each limited to the layers that its stage's memory holds.
std::vector<StageLoad> LoadsWithin(const CandidateModel& model, const Candidate& candidate) {
  const CandidateModel::Point& point = model.PointOf(candidate);
  const std::vector<StageFlow> flows = FlowsOf(model.InFlightOf(candidate), candidate.comm);
  std::vector<StageLoad> loads = point.loads;
  for (int32_t stage = 0; stage < model.stages(); ++stage) {
    loads[stage].most =
        point.memory.MostLayers(stage, flows[stage], model.placement().pipeline_ranks[stage].capacity_bytes);
  }
  return loads;
}

bool LowerDeltaNFor(const CandidateModel& model, Candidate& candidate, int32_t stage, const LayerRange& layers) {
  // A stage holds micro-batches that crossings at or after it advance, and the messages of the stage before it, which
  // the crossing between the two advances too.
  const std::vector<int32_t>& crossings = model.crossing_boundaries();
  const auto first = std::lower_bound(crossings.begin(), crossings.end(), stage - 1);
  const bool lies_before = first != crossings.end() && *first == stage - 1;
  const std::span<int32_t> delta_n = std::span(candidate.delta_n).subspan(first - crossings.begin());
  const CandidateModel::Point& point = model.PointOf(candidate);
  const StageNeeds needs = point.memory.Needs(stage, layers);
  const auto in_flight = [&](int32_t at, int64_t advance) {
    return RowOf(candidate.schedule)
        .in_flight({.devices = model.stages(),
                    .stages = model.stages(),
                    .stage = at,
                    .micro_batches = point.parts.shape.micro_batches,
                    .advance = advance});
  };
  const auto fits = [&] {
    const int64_t before = std::accumulate(delta_n.begin(), delta_n.end(), int64_t{0});
    const int64_t here = before - (lies_before ? delta_n.front() : 0);
    return needs.PeakBytes({.before = stage > 0 ? in_flight(stage - 1, before) : 0,
                            .here = in_flight(stage, here),
                            .comm = candidate.comm}) <= model.placement().pipeline_ranks[stage].capacity_bytes;
  };
  if (fits()) {
    return true;
  }
  // Caps every ΔN at `level`; the first `above` capped ones keep level + 1.
  const std::vector<int32_t> given(delta_n.begin(), delta_n.end());
  const auto fits_at = [&](int32_t level, int64_t above) {
    for (size_t i = 0; i < given.size(); ++i) {
      const bool stays_above = given[i] > level && above-- > 0;
      delta_n[i] = std::min(given[i], level + (stays_above ? 1 : 0));
    }
    return fits();
  };
  int32_t level = 0;
  if (given.empty() || !fits_at(level, 0)) {
    return false;
  }
  for (int32_t too_high = *std::max_element(given.begin(), given.end()); too_high - level > 1;) {
    const int32_t middle = level + (too_high - level) / 2;
    (fits_at(middle, 0) ? level : too_high) = middle;
  }
  int64_t above = 0;
  while (fits_at(level, above + 1)) {
    ++above;
  }
  return fits_at(level, above);
}

}  // namespace

std::vector<int32_t> BalancedLayers(const CandidateModel& model, const Candidate& candidate) {
  if (model.splits_layers()) {
    std::optional<std::vector<int32_t>> split =
        BalanceLayers(LoadsWithin(model, candidate), model.job().model.num_hidden_layers);
    if (split.has_value()) {
      return *std::move(split);
    }
  }
  return model.EvenLayers();
}

std::vector<int32_t> HidingDeltaN(const CandidateModel& model, const Candidate& candidate) {
  const CandidateModel::Point& point = model.PointOf(candidate);
  const std::vector<StageLoad>& loads = point.loads;
  int64_t period_ns = 1;
  for (size_t stage = 0; stage < loads.size(); ++stage) {
    period_ns = std::max(period_ns, loads[stage].fixed_ns + candidate.layers[stage] * loads[stage].layer_ns);
  }
  std::vector<int32_t> delta_n;
  for (const int32_t boundary : model.crossing_boundaries()) {
    const BoundaryCost& cost = point.parts.boundaries[boundary];
    const int64_t round_trip_ns = 2 * (cost.latency_ns + cost.serialization_ns + cost.overhead_ns);
    const int64_t hides = (round_trip_ns + period_ns - 1) / period_ns;
    delta_n.push_back(static_cast<int32_t>(std::min<int64_t>(hides, model.max_delta_n())));
  }
  return delta_n;
}

bool LowerDeltaN(const CandidateModel& model, Candidate& candidate) {
  const std::vector<LayerRange> layers = RangesOf(candidate.layers);
  bool fits = true;
  for (int32_t stage = model.stages() - 1; stage >= 0; --stage) {
    fits = LowerDeltaNFor(model, candidate, stage, layers[stage]) && fits;
  }
  return fits;
}

bool MoveOneLayer(const CandidateModel& model, Candidate& candidate, int32_t from) {
  if (candidate.layers[from] <= 1) {
    return false;
  }
  const std::vector<StageLoad> loads = LoadsWithin(model, candidate);
  int32_t best = -1;
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (int32_t stage = 0; stage < model.stages(); ++stage) {
    const int64_t more = candidate.layers[stage] + 1;
    const int64_t time_ns = loads[stage].fixed_ns + more * loads[stage].layer_ns;
    if (stage != from && more <= loads[stage].most && time_ns < least_ns) {
      best = stage;
      least_ns = time_ns;
    }
  }
  if (best < 0) {
    return false;
  }
  --candidate.layers[from];
  ++candidate.layers[best];
  return true;
}

bool MayFit(const CandidateModel& model, const Candidate& candidate) {
  if (model.Tightest(candidate).excess_bytes() <= 0) {
    return true;
  }
  if (!model.splits_layers()) {
    return false;
  }
  const PlanMemoryModel& memory = model.PointOf(candidate).memory;
  const std::vector<StageFlow> flows = FlowsOf(model.InFlightOf(candidate), candidate.comm);
  int64_t room = 0;
  for (int32_t stage = 0; stage < model.stages(); ++stage) {
    const int64_t most = memory.MostLayers(stage, flows[stage], model.placement().pipeline_ranks[stage].capacity_bytes,
                                           PlanMemoryModel::Layers::kLast);
    if (most == 0) {
      return false;
    }
    room += most;
  }
  return room >= model.job().model.num_hidden_layers;
}

}  // namespace geopipe
