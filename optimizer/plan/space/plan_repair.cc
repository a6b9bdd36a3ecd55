// Where the search starts, and how a candidate is made to fit.
#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "optimizer/model/plan_memory.h"
#include "optimizer/plan/space/plan_space.h"

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
    loads[stage].most = memory.MostLayers(stage, flows[stage], placement_.pipeline_ranks[stage].capacity_bytes);
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
  const bool advances = searches_delta_n_ && RowOf(candidate.schedule).uses_delta_n && crossings() > 0;
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
    int32_t least = 0;
    int32_t enough = delta_n;
    while (least < enough) {
      delta_n = least + (enough - least) / 2;
      if (BoundNs(candidate) <= bound_ns) {
        enough = delta_n;
      } else {
        least = delta_n + 1;
      }
    }
    delta_n = enough;
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

Candidate PlanSpace::FrugalCandidate(Recompute recompute, int32_t micro_batch, int32_t sequence) const {
  return {.schedule = kinds_.front(),
          .comm = comm_,
          .recompute = recompute,
          .micro_batch = micro_batch,
          .sequence = sequence,
          .layers = EvenLayers(),
          .delta_n = searches_delta_n_ ? std::vector<int32_t>(crossings(), 0) : fixed_delta_n_};
}

bool PlanSpace::MayFit(const Candidate& candidate) const {
  if (Tightest(candidate).excess_bytes() <= 0) {
    return true;
  }
  const PlanMemoryModel& memory = PointOf(candidate).memory;
  const std::vector<StageFlow> flows = FlowsOf(InFlightOf(candidate), candidate.comm);
  int64_t room = 0;
  for (int32_t stage = 0; searches_layers_ && stage < stages(); ++stage) {
    const int64_t most = memory.MostLayers(stage, flows[stage], placement_.pipeline_ranks[stage].capacity_bytes,
                                           PlanMemoryModel::Layers::kLast);
    if (most == 0) {
      return false;
    }
    room += most;
  }
  return searches_layers_ && room >= job_.model.num_hidden_layers;
}

int64_t PlanSpace::LeastExcessBytes() const {
  int64_t least_bytes = std::numeric_limits<int64_t>::max();
  for (const Recompute recompute : modes_) {
    for (int32_t b = 0; b <= genome_space_.genes[kMicroBatch].greatest; ++b) {
      for (int32_t s = 0; s <= genome_space_.genes[kSequence].greatest; ++s) {
        if (!Divides(b, s)) {
          continue;
        }
        const Candidate candidate = FrugalCandidate(recompute, b, s);
        if (MayFit(candidate)) {
          return 0;
        }
        least_bytes = std::min(least_bytes, Tightest(candidate).excess_bytes());
      }
    }
  }
  return least_bytes;
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
        Candidate candidate = FrugalCandidate(recompute, b, s);
        candidate.layers = BalancedLayers(candidate);
        if (searches_delta_n_ && RowOf(candidate.schedule).uses_delta_n) {
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

bool PlanSpace::LowerDeltaNFor(Candidate& candidate, int32_t stage, const LayerRange& layers) const {
  // A stage holds what crossings at or after it advance, and the messages of the stage before it, which the crossing
  // between the two advances too.
  const auto first = std::lower_bound(crossing_boundaries_.begin(), crossing_boundaries_.end(), stage - 1);
  const bool lies_before = first != crossing_boundaries_.end() && *first == stage - 1;
  const std::span<int32_t> delta_n = std::span(candidate.delta_n).subspan(first - crossing_boundaries_.begin());
  const Point& point = PointOf(candidate);
  const StageNeeds needs = point.memory.Needs(stage, layers);
  const auto in_flight = [&](int32_t at, int64_t advance) {
    return RowOf(candidate.schedule)
        .in_flight({.devices = stages(),
                    .chunks = stages(),
                    .chunk = at,
                    .micro_batches = point.parts.micro_batches,
                    .advance = advance});
  };
  const auto fits = [&] {
    const int64_t before = std::accumulate(delta_n.begin(), delta_n.end(), int64_t{0});
    const int64_t here = before - (lies_before ? delta_n.front() : 0);
    return needs.PeakBytes({.before = stage > 0 ? in_flight(stage - 1, before) : 0,
                            .here = in_flight(stage, here),
                            .comm = candidate.comm}) <= placement_.pipeline_ranks[stage].capacity_bytes;
  };
  if (fits()) {
    return true;
  }
  // None above `level`, but for the first `above` of those that were: they are one above.
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

bool PlanSpace::LowerDeltaN(Candidate& candidate) const {
  const std::vector<LayerRange> layers = RangesOf(candidate.layers);
  bool fits = true;
  for (int32_t stage = stages() - 1; stage >= 0; --stage) {
    fits = LowerDeltaNFor(candidate, stage, layers[stage]) && fits;
  }
  return fits;
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
  while (Tightest(candidate).excess_bytes() > 0) {
    if (searches_delta_n_ && LowerDeltaN(candidate)) {
      break;
    }
    if (searches_layers_ && MoveOneLayer(candidate, Tightest(candidate).stage)) {
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
