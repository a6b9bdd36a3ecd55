#include "optimizer/plan/report/replica_timing.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/model/transformer.h"
#include "optimizer/simulator/simulator.h"

namespace geopipe {
namespace {

// Counts of one layer, and of each end of the model.
struct PartCounts {
  int64_t embedding = 0;
  int64_t layer = 0;
  int64_t head = 0;
};

// Counts parts. `count` gives the parameters of a range.
template <typename Count>
PartCounts CountParts(const Count& count) {
  const LayerRange one{.first = 0, .last = 0, .has_embedding = false, .has_head = false};
  LayerRange first = one;
  first.has_embedding = true;
  LayerRange last = one;
  last.has_head = true;
  const LayerRange two{.first = 0, .last = 1, .has_embedding = false, .has_head = false};
  return {.embedding = count(first) - count(one), .layer = count(two) - count(one), .head = count(last) - count(one)};
}

struct StageEnd {
  int64_t end_ns = 0;
  bool is_split = false;  // its last action is a W
};

std::vector<StageEnd> EndsOf(const SimulationResult& simulated, size_t stages) {
  std::vector<StageEnd> ends(stages);
  for (const std::vector<ActionTiming>& device : simulated.timeline) {
    for (const ActionTiming& timing : device) {
      StageEnd& end = ends[static_cast<size_t>(timing.action.stage)];
      if (timing.end_ns >= end.end_ns) {
        end = {.end_ns = timing.end_ns, .is_split = timing.action.kind == ActionKind::kWeightGradient};
      }
    }
  }
  return ends;
}

// Updates of all stages, and the times at which the devices' inputs come.
std::vector<ReplicaTiming::Device> DevicesOf(const PlanParts& parts, const PlanMemoryModel& memory, const Plan& plan,
                                             const PipelineCosts& costs, const std::vector<StageEnd>& ends) {
  std::vector<ReplicaTiming::Device> devices(
      static_cast<size_t>(costs.shape.devices),
      {.end_ns = 0, .update_ns = 0, .input_ns = std::numeric_limits<int64_t>::max()});
  PlanParts unreduced = parts;
  for (PlanParts::Stage& stage : unreduced.stages) {
    stage.replicas = {};
  }
  int64_t input_ns = 0;
  for (size_t stage = 0; stage < ends.size(); ++stage) {
    if (stage > 0) {
      const BoundaryCost& boundary = costs.boundaries[stage - 1];
      input_ns += costs.forward_ns[stage - 1] + boundary.latency_ns + boundary.serialization_ns + boundary.overhead_ns;
    }
    const LayerRange& range = plan.stages[stage].layers;
    ReplicaTiming::Device& device = devices[static_cast<size_t>(costs.shape.placement[stage])];
    device.end_ns = std::max(device.end_ns, ends[stage].end_ns);
    device.update_ns += StageUpdateNs(unreduced, memory, stage, range);
    device.input_ns = std::min(device.input_ns, input_ns);
    if (parts.config.zero_stage == 1 || parts.config.zero_stage == 2) {
      const int64_t bytes = memory.Parameters(range) * ElementBytes(parts.config.precision);
      device.update_ns += SecondsToNs(AllReduceSeconds(bytes, parts.stages[stage].replicas) / 2);
    }
  }
  return devices;
}

// Carries one bucket after the other, in the order in which they are offered.
class Carrier {
 public:
  // Carries a bucket and returns the time at which it is through.
  int64_t Carry(int64_t offered_ns, int64_t duration_ns) {
    free_ns_ = std::max(free_ns_, offered_ns) + duration_ns;
    return free_ns_;
  }

 private:
  int64_t free_ns_ = 0;
};

enum class Leg : uint8_t { kScatter, kLinks, kGather };

// A bucket that arrives at a carrier. At one instant the one farther on its way goes first, then later layers.
struct Arrival {
  int64_t at_ns = 0;
  Leg leg = Leg::kScatter;
  size_t bucket = 0;
  size_t site = 0;  // any, on the links

  auto Urgency() const { return std::tuple(-at_ns, leg, bucket, -static_cast<int64_t>(site)); }
  bool operator<(const Arrival& other) const { return Urgency() < other.Urgency(); }
};

// Times at which the gradients of each pipeline rank of each site are summed, [site][rank].
std::vector<std::vector<int64_t>> SummedNs(std::span<const ReplicaTiming> sites, const SiteReduction& reduction,
                                           std::span<const int64_t> bucket_bytes) {
  std::vector<std::vector<int64_t>> summed_ns;
  std::vector<std::vector<Carrier>> networks;
  std::priority_queue<Arrival> arrivals;
  for (size_t site = 0; site < sites.size(); ++site) {
    networks.emplace_back(sites[site].devices.size());
    std::vector<int64_t>& ends_ns = summed_ns.emplace_back();
    for (const ReplicaTiming::Device& device : sites[site].devices) {
      ends_ns.push_back(device.end_ns);
    }
    GP_CHECK(sites[site].buckets.size() == bucket_bytes.size());
    for (size_t bucket = 0; bucket < bucket_bytes.size(); ++bucket) {
      arrivals.push({sites[site].buckets[bucket].ready_ns, Leg::kScatter, bucket, site});
    }
  }
  Carrier links;
  std::vector<size_t> scattered(bucket_bytes.size(), 0);  // number of sites
  std::vector<int64_t> offered_ns(bucket_bytes.size(), 0);
  while (!arrivals.empty()) {
    const Arrival next = arrivals.top();
    arrivals.pop();
    if (next.leg == Leg::kLinks) {
      const int64_t at_ns = links.Carry(next.at_ns, reduction.LinkNs(bucket_bytes[next.bucket])) + reduction.latency_ns;
      for (size_t site = 0; site < sites.size(); ++site) {
        arrivals.push({at_ns, Leg::kGather, next.bucket, site});
      }
      continue;
    }
    const ReplicaTiming::Bucket& bucket = sites[next.site].buckets[next.bucket];
    const auto rank = static_cast<size_t>(bucket.pipeline_rank);
    const bool scatters = next.leg == Leg::kScatter;
    const int64_t through_ns =
        networks[next.site][rank].Carry(next.at_ns, scatters ? bucket.scatter_ns : bucket.gather_ns);
    if (!scatters) {
      summed_ns[next.site][rank] = std::max(summed_ns[next.site][rank], through_ns);
      continue;
    }
    offered_ns[next.bucket] = std::max(offered_ns[next.bucket], through_ns);
    if (++scattered[next.bucket] == sites.size()) {
      arrivals.push({offered_ns[next.bucket], Leg::kLinks, next.bucket, 0});
    }
  }
  return summed_ns;
}

// Time at which a site whose gradients are summed then can begin its next iteration.
int64_t NextStartNs(const ReplicaTiming& site, const std::vector<int64_t>& summed_ns) {
  int64_t next_ns = site.alone_ns;
  for (size_t rank = 0; rank < site.devices.size(); ++rank) {
    int64_t start_ns = summed_ns[rank];
    for (size_t other = 0; site.clips && other < site.devices.size(); ++other) {
      start_ns = std::max(start_ns, summed_ns[other] + site.latencies_ns[other][rank]);
    }
    next_ns = std::max(next_ns, start_ns + site.devices[rank].update_ns - site.devices[rank].input_ns);
  }
  return next_ns;
}

}  // namespace

std::vector<int64_t> BucketBytes(const JobSpec& job) {
  const ModelSpec& model = job.model;
  const PartCounts counts = CountParts([&](const LayerRange& range) { return ParameterCount(model, range); });
  std::vector<int64_t> bytes(static_cast<size_t>(model.num_hidden_layers) + 1, counts.layer);
  bytes.front() += counts.embedding;
  bytes.back() = ParameterCount(model) - counts.embedding - model.num_hidden_layers * counts.layer;
  for (int64_t& each : bytes) {
    each *= kGradientBytes;
  }
  return bytes;
}

absl::StatusOr<ReplicaTiming> TimeReplica(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                          const Plan& plan, const PipelineCosts& costs, const Schedule& schedule) {
  GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(job, cluster, source, plan));
  const PlanMemoryModel memory = parts.MemoryModel(job);
  GP_ASSIGN_OR_RETURN(const SimulationResult simulated, Simulate(schedule, costs, {.record_timeline = true}));
  const std::vector<StageEnd> ends = EndsOf(simulated, plan.stages.size());
  ReplicaTiming timing{.buckets = {},
                       .devices = DevicesOf(parts, memory, plan, costs, ends),
                       .clips = parts.epilogue.clips,
                       .latencies_ns = {},
                       .alone_ns = simulated.iteration_ns};
  const PartCounts counts = CountParts([&](const LayerRange& range) { return memory.Parameters(range); });
  const size_t devices = timing.devices.size();
  timing.latencies_ns.assign(devices, std::vector<int64_t>(devices, 0));
  const auto add = [&](size_t stage, int64_t before_end_ns, int64_t parameters) {
    const double all_s = AllReduceSeconds(parameters * kGradientBytes, parts.stages[stage].replicas);
    const int64_t half_ns = SecondsToNs(all_s / 2);
    timing.buckets.push_back({.pipeline_rank = costs.shape.placement[stage],
                              .ready_ns = std::max<int64_t>(0, ends[stage].end_ns - before_end_ns),
                              .scatter_ns = half_ns,
                              .gather_ns = parts.config.zero_stage >= 1 ? 0 : half_ns});
  };
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const LayerRange& range = plan.stages[stage].layers;
    const PartCosts& block = parts.stages[stage].costs.block;
    const int64_t layer_ns = block.weight_grad_ns + (ends[stage].is_split ? 0 : block.input_grad_ns);
    for (int64_t layer = 0; layer < range.count(); ++layer) {
      add(stage, layer * layer_ns, counts.layer + (range.has_embedding && layer == 0 ? counts.embedding : 0));
    }
    if (range.has_head) {
      add(stage, range.count() * layer_ns, counts.head);
    }
    for (size_t other = 0; other < plan.stages.size(); ++other) {
      int64_t& latency_ns = timing.latencies_ns[static_cast<size_t>(costs.shape.placement[stage])]
                                               [static_cast<size_t>(costs.shape.placement[other])];
      latency_ns = std::max(latency_ns, parts.epilogue.latencies_ns[stage][other]);
    }
  }
  return timing;
}

ReducedIteration ReduceOverSites(std::span<const ReplicaTiming> sites, const SiteReduction& reduction,
                                 std::span<const int64_t> bucket_bytes) {
  GP_CHECK(sites.size() == reduction.sites.size());
  const std::vector<std::vector<int64_t>> summed_ns = SummedNs(sites, reduction, bucket_bytes);
  ReducedIteration reduced;
  int64_t alone_ns = 0;
  for (size_t site = 0; site < sites.size(); ++site) {
    alone_ns = std::max(alone_ns, sites[site].alone_ns);
    reduced.sites_ns.push_back(NextStartNs(sites[site], summed_ns[site]));
    reduced.iteration_ns = std::max(reduced.iteration_ns, reduced.sites_ns.back());
  }
  reduced.exposed_ns = reduced.iteration_ns - alone_ns;
  return reduced;
}

}  // namespace geopipe
