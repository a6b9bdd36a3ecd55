// Where the search starts, and how a candidate is made to fit.
#include <algorithm>
#include <limits>
#include <utility>

#include "optimizer/plan/plan_space.h"

namespace geopipe {

std::vector<StageLoad> PlanSpace::LoadsOf(const PlanParts& parts) const {
  const auto whole = [](const PartCosts& part) { return part.forward_ns + part.input_grad_ns + part.weight_grad_ns; };
  std::vector<StageLoad> loads(parts.stages.size());
  for (size_t stage = 0; stage < loads.size(); ++stage) {
    const ModelCosts& costs = parts.stages[stage].costs;
    loads[stage].fixed_ns =
        (stage == 0 ? whole(costs.embedding) : 0) + (stage + 1 == loads.size() ? whole(costs.head) : 0);
    loads[stage].layer_ns = whole(costs.block);
    loads[stage].most = job_.model.num_hidden_layers;
  }
  return loads;
}

void PlanSpace::LimitByMemory(const Candidate& candidate, std::vector<StageLoad>& loads) const {
  const PlanMemoryModel& memory = PointOf(candidate).memory;
  const std::vector<StageFlow> flows = FlowsOf(InFlightOf(candidate), candidate.comm);
  for (int32_t stage = 0; stage < stages(); ++stage) {
    loads[stage].most = memory.MostLayers(stage, flows[stage], placement_.stages[stage].capacity_bytes);
  }
}

std::vector<int32_t> PlanSpace::BalancedLayers(const Candidate& candidate) const {
  if (searches_layers_) {
    std::vector<StageLoad> loads = PointOf(candidate).loads;
    LimitByMemory(candidate, loads);
    if (std::optional<std::vector<int32_t>> split = BalanceLayers(loads, job_.model.num_hidden_layers)) {
      return *std::move(split);
    }
  }
  return EvenLayers();
}

std::vector<int32_t> PlanSpace::HidingDeltaN(const Candidate& candidate) const {
  const Point& point = PointOf(candidate);
  const std::vector<StageLoad>& loads = point.loads;
  int64_t period_ns = 1;
  for (size_t stage = 0; stage < loads.size(); ++stage) {
    period_ns = std::max(period_ns, loads[stage].fixed_ns + candidate.layers[stage] * loads[stage].layer_ns);
  }
  std::vector<int32_t> delta_n;
  for (const int32_t boundary : crossing_boundaries_) {
    const BoundaryCost& cost = point.parts.boundaries[boundary];
    const int64_t round_trip_ns = 2 * (cost.latency_ns + cost.serialization_ns + cost.overhead_ns);
    const int64_t hides = (round_trip_ns + period_ns - 1) / period_ns;
    delta_n.push_back(static_cast<int32_t>(std::min<int64_t>(hides, job_.search.max_delta_n)));
  }
  return delta_n;
}

void PlanSpace::AddSeeds(Candidate candidate, std::vector<Genome>& seeds) const {
  const bool advances = searches_delta_n_ && candidate.schedule == ScheduleKind::kGeoPipe && crossings() > 0;
  candidate.delta_n = searches_delta_n_ ? std::vector<int32_t>(crossings(), 0) : fixed_delta_n_;
  candidate.layers = EvenLayers();
  seeds.push_back(GenomeOf(candidate));
  candidate.layers = BalancedLayers(candidate);
  seeds.push_back(GenomeOf(candidate));
  if (!advances) {
    return;
  }
  candidate.delta_n = HidingDeltaN(candidate);
  Candidate even = candidate;
  even.layers = EvenLayers();
  LowerDeltaN(even);
  seeds.push_back(GenomeOf(even));
  candidate.layers = BalancedLayers(candidate);  // for the memory that this advance leaves
  LowerDeltaN(candidate);
  seeds.push_back(GenomeOf(candidate));
  const int64_t bound_ns = BoundNs(candidate);
  for (int32_t& delta_n : candidate.delta_n) {
    while (delta_n > 0) {
      --delta_n;
      if (BoundNs(candidate) > bound_ns) {
        ++delta_n;
        break;
      }
    }
  }
  seeds.push_back(GenomeOf(candidate));
}

std::vector<Genome> PlanSpace::Seeds() const {
  std::vector<Genome> seeds;
  for (const ScheduleKind kind : kinds_) {
    for (const Recompute recompute : modes_) {
      for (int32_t b = 0; b <= genome_space_.genes[kMicroBatch].greatest; ++b) {
        for (int32_t s = 0; s <= genome_space_.genes[kSequence].greatest; ++s) {
          if (Divides(b, s)) {
            AddSeeds({.schedule = kind,
                      .comm = comm_,
                      .recompute = recompute,
                      .micro_batch = b,
                      .sequence = s,
                      .layers = {},
                      .delta_n = {}},
                     seeds);
          }
        }
      }
    }
  }
  return seeds;
}

std::optional<PlanSpace::Guess> PlanSpace::Quick() const {
  std::optional<Guess> best;
  for (const Recompute recompute : modes_) {
    for (int32_t b = 0; b <= genome_space_.genes[kMicroBatch].greatest; ++b) {
      for (int32_t s = 0; s <= genome_space_.genes[kSequence].greatest; ++s) {
        const std::optional<Point>& point = PointAt(recompute, b, s);
        if (!point.has_value() || (best.has_value() && point->least_ns >= best->iteration_ns)) {
          continue;
        }
        Candidate candidate{.schedule = kinds_.front(),
                            .comm = comm_,
                            .recompute = recompute,
                            .micro_batch = b,
                            .sequence = s,
                            .layers = EvenLayers(),
                            .delta_n = fixed_delta_n_};
        if (searches_delta_n_) {
          candidate.delta_n.assign(crossings(), 0);
        }
        candidate.layers = BalancedLayers(candidate);
        if (searches_delta_n_ && candidate.schedule == ScheduleKind::kGeoPipe) {
          candidate.delta_n = HidingDeltaN(candidate);
          LowerDeltaN(candidate);
        }
        if (Tightest(candidate).excess_bytes() > 0) {
          continue;
        }
        const int64_t bound_ns = BoundNs(candidate);
        if (!best.has_value() || bound_ns < best->iteration_ns) {
          best = Guess{bound_ns, std::move(candidate)};
        }
      }
    }
  }
  return best;
}

bool PlanSpace::LowerOneDeltaN(Candidate& candidate, int32_t tightest_stage) const {
  // A stage holds what crossings at or after it advance, and the messages of the stage before it,
  // which the crossing between the two advances too.
  int32_t* largest = nullptr;
  for (size_t crossing = 0; crossing < candidate.delta_n.size(); ++crossing) {
    const bool matters = crossing_boundaries_[crossing] >= tightest_stage - 1;
    if (matters && candidate.delta_n[crossing] > 0 && (largest == nullptr || candidate.delta_n[crossing] >= *largest)) {
      largest = &candidate.delta_n[crossing];
    }
  }
  if (largest == nullptr) {
    return false;
  }
  --*largest;
  return true;
}

bool PlanSpace::LowerDeltaN(Candidate& candidate) const {
  while (true) {
    const TightestStage tightest = Tightest(candidate);
    if (tightest.excess_bytes() <= 0) {
      return true;
    }
    if (!LowerOneDeltaN(candidate, tightest.stage)) {
      return false;
    }
  }
}

// To the stage that has room for it and takes the least time with it.
bool PlanSpace::MoveOneLayer(Candidate& candidate, int32_t tightest_stage) const {
  if (candidate.layers[tightest_stage] <= 1) {
    return false;
  }
  std::vector<StageLoad> loads = PointOf(candidate).loads;
  LimitByMemory(candidate, loads);
  int32_t best = -1;
  int64_t least_ns = std::numeric_limits<int64_t>::max();
  for (int32_t stage = 0; stage < stages(); ++stage) {
    const int64_t more = candidate.layers[stage] + 1;
    const int64_t time_ns = loads[stage].fixed_ns + more * loads[stage].layer_ns;
    if (stage != tightest_stage && more <= loads[stage].most && time_ns < least_ns) {
      best = stage;
      least_ns = time_ns;
    }
  }
  if (best < 0) {
    return false;
  }
  --candidate.layers[tightest_stage];
  ++candidate.layers[best];
  return true;
}

void PlanSpace::Repair(Genome& genome) const {
  if (!Divides(genome[kMicroBatch], genome[kSequence])) {
    return;
  }
  Candidate candidate = CandidateOf(genome);
  for (TightestStage tightest = Tightest(candidate); tightest.excess_bytes() > 0; tightest = Tightest(candidate)) {
    if ((searches_delta_n_ && LowerOneDeltaN(candidate, tightest.stage)) ||
        (searches_layers_ && MoveOneLayer(candidate, tightest.stage))) {
      continue;
    }
    const auto mode = std::find(modes_.begin(), modes_.end(), candidate.recompute);
    if (mode + 1 == modes_.end()) {
      break;
    }
    candidate.recompute = *(mode + 1);
  }
  genome = GenomeOf(candidate);
}

}  // namespace geopipe
