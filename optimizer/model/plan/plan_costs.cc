#include "optimizer/model/plan/plan_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/cost_source.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/plan/epilogue.h"
#include "optimizer/model/plan/message_overhead.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

constexpr double kLongestTransferSeconds = 1e6;

absl::StatusOr<int64_t> TransferNs(const LinkSpec& link, int64_t bytes, int64_t sharers) {
  if (link.inside() && link.bandwidth_bytes_per_s == 0) {
    return 0;
  }
  const double seconds = static_cast<double>(bytes) * static_cast<double>(sharers) / link.bandwidth_bytes_per_s;
  if (!(seconds < kLongestTransferSeconds)) {
    return absl::InvalidArgumentError(
        fmt::format("link between \"{}\" and \"{}\": a message of {} bytes would take {} s; its bandwidth is too small",
                    link.site_a, link.site_b, bytes, seconds));
  }
  return SecondsToNs(seconds);
}

absl::StatusOr<BoundaryCost> BoundaryCostBetween(const ClusterSpec& cluster, const std::string& from,
                                                 const std::string& to, int64_t message_bytes, int64_t sharers) {
  BoundaryCost boundary;
  boundary.message_bytes = message_bytes;
  const std::string_view site_from = SiteOfGroup(from);
  const std::string_view site_to = SiteOfGroup(to);
  if (site_from == site_to) {
    return boundary;
  }
  const LinkSpec* link = cluster.FindLink(from, to);
  if (link == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("there is no link between \"{}\" and \"{}\", which are neighbours in the pipeline; add the link or "
                    "change placement.sites",
                    from, to));
  }
  boundary.crosses = true;
  boundary.link = fmt::format("{}-{}", std::min(site_from, site_to), std::max(site_from, site_to));
  boundary.latency_ns = link->latency_ns;
  GP_ASSIGN_OR_RETURN(boundary.serialization_ns, TransferNs(*link, message_bytes, sharers));
  return boundary;
}

// One-way latency of a message that goes straight from stage to stage, [from][to]: over the two sites' own link if
// there is one, else over the fastest path.
absl::StatusOr<std::vector<std::vector<int64_t>>> StageLatencies(const ClusterSpec& cluster, const Profile* profile,
                                                                 const Plan& plan) {
  std::vector<std::string_view> sites;
  std::vector<size_t> site_of;
  for (const StagePlan& stage : plan.stages) {
    const std::string& site = plan.pipeline_ranks[stage.pipeline_rank].site;
    const auto known = std::find(sites.begin(), sites.end(), site);
    site_of.push_back(static_cast<size_t>(known - sites.begin()));
    if (known == sites.end()) {
      sites.emplace_back(site);
    }
  }
  std::map<std::string_view, size_t> index;
  for (size_t i = 0; i < sites.size(); ++i) {
    index[sites[i]] = i;
  }
  constexpr int64_t kNoLink = -1;
  std::vector<std::vector<int64_t>> of_sites(sites.size(), std::vector<int64_t>(sites.size(), kNoLink));
  for (const LinkSpec& link : cluster.links) {
    const auto a = index.find(link.site_a);
    const auto b = index.find(link.site_b);
    if (a != index.end() && b != index.end()) {
      of_sites[a->second][b->second] = of_sites[b->second][a->second] = link.latency_ns;
    }
  }
  for (size_t from = 0; from < sites.size(); ++from) {
    for (size_t to = 0; to < sites.size(); ++to) {
      int64_t& latency_ns = of_sites[from][to];
      if (from == to) {
        latency_ns = 0;
      } else if (latency_ns == kNoLink) {
        GP_ASSIGN_OR_RETURN(latency_ns, PathLatencyNs(cluster, sites[from], sites[to]));
      }
      latency_ns += MessageOverheadNs(profile, cluster, sites[from], sites[to], 0, 0);
    }
  }
  std::vector<std::vector<int64_t>> latencies(plan.stages.size(), std::vector<int64_t>(plan.stages.size(), 0));
  for (size_t from = 0; from < plan.stages.size(); ++from) {
    for (size_t to = 0; to < plan.stages.size(); ++to) {
      const bool together = plan.stages[from].pipeline_rank == plan.stages[to].pipeline_rank;
      latencies[from][to] = together ? 0 : of_sites[site_of[from]][site_of[to]];
    }
  }
  return latencies;
}

// Time of one tied-embedding gradient from one end of the pipeline to the other: over their own link if there is one,
// else link by link along the pipeline.
absl::StatusOr<int64_t> TiedExchangeNs(const JobSpec& job, const ClusterSpec& cluster, const Plan& plan) {
  const auto stages = static_cast<int32_t>(plan.stages.size());
  const std::string& first = plan.SiteOf(0);
  const std::string& last = plan.SiteOf(stages - 1);
  const int64_t bytes = job.model.vocab_rows() * job.model.hidden_size * kGradientBytes;
  if (!job.model.tie_word_embeddings || first == last) {
    return 0;
  }
  if (const LinkSpec* link = cluster.FindLink(first, last)) {
    GP_ASSIGN_OR_RETURN(const int64_t transfer_ns, TransferNs(*link, bytes, 1));
    return link->latency_ns + transfer_ns;
  }
  int64_t total_ns = 0;
  for (int32_t stage = 1; stage < stages; ++stage) {
    GP_ASSIGN_OR_RETURN(const BoundaryCost hop,
                        BoundaryCostBetween(cluster, plan.SiteOf(stage - 1), plan.SiteOf(stage), bytes, 1));
    total_ns += hop.latency_ns + hop.serialization_ns;
  }
  return total_ns;
}

// The part of a site's network that one device has: devices of a node share that of the node.
double NetworkBandwidthOfDevice(const SiteSpec& site, int64_t devices) {
  const double sharers = site.network.per == NetworkSpec::Per::kNode ? static_cast<double>(devices) : 1;
  return site.network.bandwidth_bytes_per_s / sharers;
}

absl::StatusOr<ReplicaGroup> ReplicasOf(const SiteSpec& site, const ExecutionConfig& config, const Plan& plan,
                                        int32_t pipeline_rank) {
  std::vector<std::pair<int32_t, int64_t>> replicas;  // by node, of which neighbours are mostly on the same
  const std::span<const DevicePlace> places = plan.DevicesOf(pipeline_rank);
  for (size_t i = 0; i < places.size(); i += static_cast<size_t>(config.tensor)) {
    const int32_t node = places[i].node;
    const auto known =
        std::find_if(replicas.rbegin(), replicas.rend(), [&](const auto& each) { return each.first == node; });
    if (known == replicas.rend()) {
      replicas.emplace_back(node, 1);
    } else {
      ++known->second;
    }
  }
  const auto [least, most] = std::ranges::minmax_element(replicas, {}, [](const auto& entry) { return entry.second; });
  const ReplicaGroup group{.nodes = std::ssize(replicas),
                           .max_per_node = most->second,
                           .min_per_node = least->second,
                           .node_bandwidth_bytes_per_s = site.device.intra_node_bandwidth_bytes_per_s,
                           .network_bandwidth_bytes_per_s = NetworkBandwidthOfDevice(site, site.devices_per_node),
                           .network_latency_ns = site.network.latency_ns};
  if (group.max_per_node > 1 && !(group.node_bandwidth_bytes_per_s > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": device.intra_node_bandwidth is not given, and parallelism.data {} needs it",
                    site.name, config.data));
  }
  if (group.nodes > 1 && !site.network.given()) {
    return absl::InvalidArgumentError(fmt::format(
        "site \"{}\": its network is not given, and replicas of a stage on {} nodes need it", site.name, group.nodes));
  }
  return group;
}

// Time of a message between two pipeline ranks of a site over its network: all replicas send at once, each its tensor
// ranks' slices, which the receiver gathers. 0: both are on one node, or the network is not known.
int64_t NetworkMessageNs(const SiteSpec& site, const ExecutionConfig& config, const Plan& plan, int32_t from,
                         int32_t to, int64_t message_bytes) {
  const std::span<const DevicePlace> sends = plan.DevicesOf(from);
  const std::span<const DevicePlace> takes = plan.DevicesOf(to);
  const bool together = plan.pipeline_ranks[from].site == plan.pipeline_ranks[to].site &&
                        std::ranges::equal(sends, takes, {}, &DevicePlace::node, &DevicePlace::node);
  if (!site.network.given() || from == to || together) {
    return 0;
  }
  // Groups may differ in the number of replicas on a node.
  const int64_t on_node = std::max(std::ranges::count(sends, sends.front().node, &DevicePlace::node),
                                   std::ranges::count(takes, takes.front().node, &DevicePlace::node));
  const double bytes = static_cast<double>(message_bytes) / static_cast<double>(config.tensor);
  return site.network.latency_ns + SecondsToNs(bytes / NetworkBandwidthOfDevice(site, on_node));
}

// Adds the copies of offloaded states to the device and back, run by run.
absl::Status AddOffload(const ExecutionConfig& config, const SiteSpec& site, ModelCosts& costs) {
  if (!config.offloads_optimizer) {
    return absl::OkStatus();
  }
  if (!(site.device.host_bandwidth_bytes_per_s > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": device.host_bandwidth is not given, and parallelism.offload needs it", site.name));
  }
  const int64_t bytes = 2 * StateVectors(BucketKind::kLayer, config.precision) * kFp32Bytes;
  costs.adamw_ns_per_parameter += 1e9 * static_cast<double>(bytes) / site.device.host_bandwidth_bytes_per_s;
  return absl::OkStatus();
}

absl::StatusOr<PlanParts::Stage> PartsOfStage(const ClusterSpec& cluster, const CostSource& source,
                                              const ExecutionConfig& config, const Plan& plan, int32_t stage) {
  const int32_t pipeline_rank = plan.stages[stage].pipeline_rank;
  const PipelineRankPlan& place = plan.pipeline_ranks[pipeline_rank];
  const SiteSpec* site = cluster.FindSite(place.site);
  if (site == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("stage {} is on site \"{}\", which the cluster does not have", stage, place.site));
  }
  PlanParts::Stage parts;
  ExecutionConfig of_rank = config;
  of_rank.recompute = place.recompute;
  GP_ASSIGN_OR_RETURN(parts.costs, source.At(of_rank, *site, plan.DevicesOf(pipeline_rank).front().device));
  GP_RETURN_IF_ERROR(AddOffload(config, *site, parts.costs));
  GP_ASSIGN_OR_RETURN(parts.replicas, ReplicasOf(*site, config, plan, pipeline_rank));
  parts.capacity_bytes = place.capacity_bytes;
  parts.recompute = place.recompute;
  return parts;
}

}  // namespace

void AddSharding(const ModelSpec& model, const ExecutionConfig& config, const ReplicaGroup& replicas,
                 ModelCosts& costs) {
  if (config.zero_stage < 2 || config.data == 1) {
    return;
  }
  const auto count = [&](bool embedding, bool head, int64_t layers) {
    return ParameterCountPerRank(model, {.first = 0, .last = layers - 1, .has_embedding = embedding, .has_head = head},
                                 config.tensor);
  };
  const std::pair<PartCosts ModelCosts::*, int64_t> kinds[] = {{&ModelCosts::embedding, count(true, false, 0)},
                                                               {&ModelCosts::block, count(false, false, 1)},
                                                               {&ModelCosts::head, count(false, true, 0)}};
  const auto half_ns = [&](int64_t parameters, int64_t bytes_each) {
    return SecondsToNs(AllReduceSeconds(parameters * bytes_each, replicas) / 2);
  };
  for (const auto& [part, parameters] : kinds) {
    PartCosts& of_part = costs.*part;
    const int64_t gather_ns = config.zero_stage >= 3 ? half_ns(parameters, ElementBytes(config.precision)) : 0;
    const int64_t back_ns = gather_ns + half_ns(parameters, kGradientBytes);
    of_part.forward_ns = std::max(of_part.forward_ns, gather_ns);
    of_part.input_grad_ns = std::max(of_part.input_grad_ns, gather_ns);
    of_part.weight_grad_ns = std::max(of_part.weight_grad_ns, back_ns - of_part.input_grad_ns);
  }
}

JobSpec JobOnCluster(JobSpec job, const ClusterSpec& cluster) {
  const auto in_host = [](const SiteSpec& site) { return site.device.is_in_host_memory(); };
  const auto is_dense = [](const SiteSpec& site) { return site.device.attention == Attention::kDense; };
  job.own_memory = std::ranges::none_of(cluster.sites, in_host);
  if (std::ranges::any_of(cluster.sites, is_dense)) {
    job.attention = Attention::kDense;
  }
  return job;
}

PlanMemoryModel PlanParts::MemoryModel(const JobSpec& job) const {
  std::vector<Recompute> of_devices(static_cast<size_t>(shape.devices), config.recompute);
  std::vector<int64_t> collective_bytes(of_devices.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    of_devices[shape.placement[stage]] = stages[stage].recompute;
    collective_bytes[shape.placement[stage]] =
        CollectiveBytes(job.model, config, /*replicas_on_one_node=*/stages[stage].replicas.nodes == 1);
  }
  return {job, config, shape.placement, of_devices, collective_bytes};
}

absl::StatusOr<PlanParts> PartsOfPlan(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                      const Plan& plan) {
  GP_CHECK(!plan.stages.empty());
  PlanParts parts;
  parts.config = ConfigOfPlan(job, plan);
  parts.shape = plan.Shape();
  parts.epilogue.clips = job.training.grad_clip.has_value();
  const auto stages = static_cast<int32_t>(plan.stages.size());
  for (int32_t stage = 0; stage < stages; ++stage) {
    // All devices of a site are alike without measurements.
    if (source.profile() == nullptr && stage > 0 && plan.SiteOf(stage) == plan.SiteOf(stage - 1) &&
        plan.RecomputeOf(stage) == plan.RecomputeOf(stage - 1)) {
      const int32_t rank = plan.stages[stage].pipeline_rank;
      parts.stages.push_back(parts.stages.back());
      parts.stages.back().capacity_bytes = plan.pipeline_ranks[rank].capacity_bytes;
      GP_ASSIGN_OR_RETURN(parts.stages.back().replicas,
                          ReplicasOf(*cluster.FindSite(plan.SiteOf(stage)), parts.config, plan, rank));
      continue;
    }
    GP_ASSIGN_OR_RETURN(const PlanParts::Stage costs, PartsOfStage(cluster, source, parts.config, plan, stage));
    parts.stages.push_back(costs);
  }
  for (PlanParts::Stage& each : parts.stages) {
    AddSharding(job.model, parts.config, each.replicas, each.costs);
  }
  for (int32_t stage = 1; stage < stages; ++stage) {
    GP_ASSIGN_OR_RETURN(BoundaryCost boundary,
                        BoundaryCostBetween(cluster, plan.SiteOf(stage - 1), plan.SiteOf(stage),
                                            BoundaryMessageBytes(job.model, parts.config), parts.config.data));
    if (parts.shape.placement[stage - 1] != parts.shape.placement[stage]) {
      AddMessageOverhead(source.profile(), cluster, plan.SiteOf(stage - 1), plan.SiteOf(stage), plan.comm, boundary);
    }
    if (!boundary.crosses) {
      boundary.overhead_ns +=
          NetworkMessageNs(*cluster.FindSite(plan.SiteOf(stage)), parts.config, plan, parts.shape.placement[stage - 1],
                           parts.shape.placement[stage], boundary.message_bytes);
    }
    parts.boundaries.push_back(std::move(boundary));
  }
  GP_ASSIGN_OR_RETURN(parts.epilogue.latencies_ns, StageLatencies(cluster, source.profile(), plan));
  GP_ASSIGN_OR_RETURN(parts.epilogue.tied_ns, TiedExchangeNs(job, cluster, plan));
  return parts;
}

namespace {

// Time to gather updated weights, or to scatter gradients, over the replicas: half an all-reduce.
int64_t HalfReductionNs(const PlanParts& parts, size_t stage, int64_t bytes) {
  return SecondsToNs(AllReduceSeconds(bytes, parts.stages[stage].replicas) / 2);
}

// Time of AdamW, which follows the reduction, and of gathering the weights.
int64_t AdamWNs(const PlanParts& parts, size_t stage, int64_t parameters) {
  const ExecutionConfig& config = parts.config;
  const bool is_sharded = config.zero_stage >= 1;
  const bool gathers = is_sharded && config.zero_stage < 3;  // else the next forward does
  const int64_t updated = is_sharded ? parameters / config.data : parameters;
  const double adamw_ns = static_cast<double>(updated) * parts.stages[stage].costs.adamw_ns_per_parameter;
  return SecondsToNs(adamw_ns / 1e9) +
         (gathers ? HalfReductionNs(parts, stage, parameters * ElementBytes(config.precision)) : 0);
}

int64_t ReductionNs(const PlanParts& parts, size_t stage, int64_t parameters) {
  const int64_t half_ns = HalfReductionNs(parts, stage, parameters * kGradientBytes);
  return parts.config.zero_stage >= 1 ? half_ns : 2 * half_ns;
}

LayerRange FirstOf(const LayerRange& range, int64_t layers) {
  return {
      .first = range.first, .last = range.first + layers - 1, .has_embedding = range.has_embedding, .has_head = false};
}

int64_t LayerReductionNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage, const LayerRange& range) {
  return ReductionNs(parts, stage, memory.Parameters(FirstOf(range, 2)) - memory.Parameters(FirstOf(range, 1)));
}

// Reduction of the gradients that the stage's backward comes to last: those of its first layer, and of the embedding.
int64_t LastBucketNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage, const LayerRange& range) {
  return range.has_embedding ? ReductionNs(parts, stage, memory.Parameters(FirstOf(range, 1)))
                             : LayerReductionNs(parts, memory, stage, range);
}

// Time from the end of the stage's last backward to that of the reduction: buckets follow each other, each from the
// time when its gradients are there. The head's comes first, then one layer's after the other.
int64_t ExposedReductionNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage,
                           const LayerRange& range) {
  if (parts.config.zero_stage >= 2) {
    return LastBucketNs(parts, memory, stage, range);  // the others are scattered behind every micro-batch
  }
  const PartCosts& block = parts.stages[stage].costs.block;
  const int64_t layer_ns = block.input_grad_ns + block.weight_grad_ns;
  const int64_t last_ns = LastBucketNs(parts, memory, stage, range);
  const int64_t head = memory.Parameters(range) - memory.Parameters(FirstOf(range, range.count()));
  const int64_t layers_ns = last_ns + (range.count() - 1) * LayerReductionNs(parts, memory, stage, range);
  const int64_t all_ns = range.has_head ? ReductionNs(parts, stage, head) + layers_ns : 0;
  return std::max({last_ns, layers_ns - (range.count() - 1) * layer_ns, all_ns - range.count() * layer_ns});
}

}  // namespace

int64_t StageUpdateNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage, const LayerRange& range) {
  const int64_t exposed_ns = parts.config.data == 1 ? 0 : ExposedReductionNs(parts, memory, stage, range);
  return exposed_ns + AdamWNs(parts, stage, memory.Parameters(range));
}

int64_t MinStageUpdateNs(const PlanParts& parts, const PlanMemoryModel& memory, size_t stage, const LayerRange& range) {
  return AdamWNs(parts, stage, memory.Parameters(range)) +
         (parts.config.data == 1 ? 0 : LastBucketNs(parts, memory, stage, range));
}

PipelineCosts ComposeCosts(const PlanParts& parts, const PlanMemoryModel& memory, std::span<const LayerRange> layers,
                           const std::vector<int64_t>& in_flight, CommMode comm) {
  const size_t stages = parts.stages.size();
  GP_CHECK(layers.size() == stages && in_flight.size() == stages);
  const std::vector<StageFlow> flows = FlowsOf(in_flight, comm);
  PipelineCosts costs;
  costs.shape = parts.shape;
  costs.comm = comm;
  costs.boundaries = parts.boundaries;
  std::vector<int64_t> update_ns;
  std::vector<StageMemory> of_devices(static_cast<size_t>(costs.shape.devices));
  MemoryCosts& bytes = costs.memory.emplace();
  bytes.capacity_bytes.resize(static_cast<size_t>(costs.shape.devices));
  bytes.static_bytes.resize(static_cast<size_t>(costs.shape.devices));
  for (size_t stage = 0; stage < stages; ++stage) {
    const ModelCosts& unit = parts.stages[stage].costs;
    const int64_t embedding = layers[stage].has_embedding ? 1 : 0;
    const int64_t head = layers[stage].has_head ? 1 : 0;
    const auto sum = [&](int64_t PartCosts::*part) {
      return embedding * (unit.embedding.*part) + layers[stage].count() * (unit.block.*part) + head * (unit.head.*part);
    };
    costs.forward_ns.push_back(sum(&PartCosts::forward_ns));
    costs.input_grad_ns.push_back(sum(&PartCosts::input_grad_ns));
    costs.weight_grad_ns.push_back(sum(&PartCosts::weight_grad_ns));
    update_ns.push_back(StageUpdateNs(parts, memory, stage, layers[stage]));
    const StageMemory need = memory.Needs(static_cast<int32_t>(stage), layers[stage]).At(flows[stage]);
    const int32_t device = costs.shape.placement[stage];
    bytes.capacity_bytes[device] = parts.stages[stage].capacity_bytes;
    of_devices[device] += need;
    bytes.static_bytes[device] = of_devices[device].static_bytes();
    bytes.activation_bytes.push_back(need.activation_bytes);
    bytes.wgrad_bytes.push_back(need.weight_grad_bytes);
  }
  costs.epilogue_ns = EpilogueNs(costs, parts.epilogue, update_ns);
  return costs;
}

absl::StatusOr<PipelineCosts> CostsOfPlan(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                          const Plan& plan) {
  GP_ASSIGN_OR_RETURN(const PlanParts parts, PartsOfPlan(job, cluster, source, plan));
  return CostsOfParts(job, parts, plan);
}

absl::StatusOr<PipelineCosts> CostsOfParts(const JobSpec& job, const PlanParts& parts, const Plan& plan) {
  std::vector<LayerRange> layers;
  for (const StagePlan& stage : plan.stages) {
    layers.push_back(stage.layers);
  }
  const PlanMemoryModel memory = parts.MemoryModel(job);
  PipelineCosts costs = ComposeCosts(parts, memory, layers, InFlightOfPlan(plan), plan.comm);
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  return costs;
}

int64_t WanBytesPerIteration(const PipelineCosts& costs, int64_t data) {
  int64_t bytes = 0;
  for (const BoundaryCost& boundary : costs.boundaries) {
    bytes += boundary.crosses ? 2 * boundary.message_bytes * costs.shape.micro_batches * data : 0;
  }
  return bytes;
}

absl::StatusOr<int64_t> PathLatencyNs(const ClusterSpec& cluster, std::string_view from, std::string_view to) {
  // Bellman-Ford suffices: few sites, few links.
  constexpr int64_t kUnreachable = std::numeric_limits<int64_t>::max();
  std::map<std::string_view, int64_t> distance;
  for (const SiteSpec& site : cluster.sites) {
    distance[site.name] = site.name == from ? 0 : kUnreachable;
  }
  for (size_t round = 1; round < cluster.sites.size(); ++round) {
    for (const LinkSpec& link : cluster.links) {
      int64_t& a = distance[link.site_a];
      int64_t& b = distance[link.site_b];
      if (a != kUnreachable) {
        b = std::min(b, a + link.latency_ns);
      }
      if (b != kUnreachable) {
        a = std::min(a, b + link.latency_ns);
      }
    }
  }
  const auto found = distance.find(to);
  if (found == distance.end() || found->second == kUnreachable) {
    return absl::FailedPreconditionError(fmt::format("no path of links joins \"{}\" and \"{}\"", from, to));
  }
  return found->second;
}

}  // namespace geopipe
