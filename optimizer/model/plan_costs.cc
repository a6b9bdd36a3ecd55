#include "optimizer/model/plan_costs.h"

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
#include "optimizer/model/epilogue.h"
#include "optimizer/model/message_overhead.h"
#include "optimizer/model/plan_memory.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

constexpr double kLongestTransferSeconds = 1e6;

ExecutionConfig ConfigOfPlan(const JobSpec& job, const Plan& plan) {
  return MakeExecutionConfig(job, plan.micro_batch_size, plan.sequence_length, plan.recompute);
}

absl::StatusOr<int64_t> TransferNs(const LinkSpec& link, int64_t bytes, int64_t sharers) {
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
  if (from == to) {
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
  boundary.link = fmt::format("{}-{}", std::min(from, to), std::max(from, to));
  boundary.latency_ns = link->latency_ns;
  GP_ASSIGN_OR_RETURN(boundary.serialization_ns, TransferNs(*link, message_bytes, sharers));
  return boundary;
}

// Data-parallel synchronisation and AdamW of one stage.
int64_t UpdateNs(const JobSpec& job, const ExecutionConfig& config, const SiteSpec& site, const LayerRange& layers,
                 double adamw_ns_per_parameter) {
  const int64_t parameters = ParameterCountPerRank(job.model, layers, config.tensor);
  const int64_t updated = config.zero_stage >= 1 ? parameters / config.data : parameters;
  const double sync_seconds = AllReduceSeconds(parameters * GradientBytes(config.precision), config.data,
                                               site.device.intra_node_bandwidth_bytes_per_s);
  return SecondsToNs(sync_seconds + static_cast<double>(updated) * adamw_ns_per_parameter / 1e9);
}

// One-way latency of what goes straight from stage to stage, [from][to]: over the two sites' own link where there is
// one, else over the fastest path.
absl::StatusOr<std::vector<std::vector<int64_t>>> StageLatencies(const ClusterSpec& cluster, const Profile* profile,
                                                                 const Plan& plan) {
  std::map<std::pair<std::string_view, std::string_view>, int64_t> of_sites;
  std::vector<std::vector<int64_t>> latencies(plan.stages.size(), std::vector<int64_t>(plan.stages.size(), 0));
  for (size_t from = 0; from < plan.stages.size(); ++from) {
    for (size_t to = 0; to < plan.stages.size(); ++to) {
      const std::pair<std::string_view, std::string_view> sites(plan.stages[from].site, plan.stages[to].site);
      const auto [entry, added] = of_sites.try_emplace(sites, 0);
      if (added && sites.first != sites.second) {
        if (const LinkSpec* link = cluster.FindLink(sites.first, sites.second)) {
          entry->second = link->latency_ns;
        } else {
          GP_ASSIGN_OR_RETURN(entry->second, PathLatencyNs(cluster, sites.first, sites.second));
        }
      }
      const int64_t overhead_ns = from == to ? 0 : MessageOverheadNs(profile, sites.first, sites.second, 0, 0);
      latencies[from][to] = entry->second + overhead_ns;
    }
  }
  return latencies;
}

// Time for one tied-embedding gradient to go from one end of the pipeline to the other: over their own link where there
// is one, else link by link along the pipeline.
absl::StatusOr<int64_t> TiedExchangeNs(const JobSpec& job, const ClusterSpec& cluster, const ExecutionConfig& config,
                                       const Plan& plan) {
  const std::string& first = plan.stages.front().site;
  const std::string& last = plan.stages.back().site;
  const int64_t bytes = job.model.vocab_size * job.model.hidden_size * GradientBytes(config.precision);
  if (!job.model.tie_word_embeddings || first == last) {
    return 0;
  }
  if (const LinkSpec* link = cluster.FindLink(first, last)) {
    GP_ASSIGN_OR_RETURN(const int64_t transfer_ns, TransferNs(*link, bytes, 1));
    return link->latency_ns + transfer_ns;
  }
  int64_t total_ns = 0;
  for (size_t stage = 1; stage < plan.stages.size(); ++stage) {
    GP_ASSIGN_OR_RETURN(const BoundaryCost hop,
                        BoundaryCostBetween(cluster, plan.stages[stage - 1].site, plan.stages[stage].site, bytes, 1));
    total_ns += hop.latency_ns + hop.serialization_ns;
  }
  return total_ns;
}

MemoryCosts MemoryCostsOf(const JobSpec& job, const Plan& plan) {
  MemoryCosts memory;
  const std::vector<StageMemory> needs = MemoryOfPlan(job, plan);
  for (size_t stage = 0; stage < needs.size(); ++stage) {
    memory.capacity_bytes.push_back(plan.stages[stage].capacity_bytes);
    memory.static_bytes.push_back(needs[stage].static_bytes());
    memory.activation_bytes.push_back(needs[stage].activation_bytes);
    memory.wgrad_bytes.push_back(needs[stage].weight_grad_bytes);
  }
  return memory;
}

}  // namespace

absl::StatusOr<PipelineCosts> CostsOfPlan(const JobSpec& job, const ClusterSpec& cluster, const Profile* profile,
                                          const Plan& plan) {
  GP_CHECK(!plan.stages.empty());
  const ExecutionConfig config = ConfigOfPlan(job, plan);
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(static_cast<int32_t>(plan.stages.size()), plan.micro_batches);
  costs.comm = plan.comm;
  EpilogueParts epilogue;
  epilogue.clips = job.training.grad_clip.has_value();
  for (const StagePlan& stage : plan.stages) {
    const SiteSpec* site = cluster.FindSite(stage.site);
    if (site == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("stage {} is on site \"{}\", which the cluster does not have", stage.index, stage.site));
    }
    const int32_t device = stage.devices.empty() ? 0 : stage.devices.front();
    GP_ASSIGN_OR_RETURN(const ModelCosts parts, CostsAt(job.model, config, *site, device, profile));
    const int64_t embedding = stage.layers.has_embedding ? 1 : 0;
    const int64_t head = stage.layers.has_head ? 1 : 0;
    const int64_t blocks = stage.layers.count();
    const auto sum = [&](int64_t PartCosts::*part) {
      return embedding * (parts.embedding.*part) + blocks * (parts.block.*part) + head * (parts.head.*part);
    };
    costs.forward_ns.push_back(sum(&PartCosts::forward_ns));
    costs.input_grad_ns.push_back(sum(&PartCosts::input_grad_ns));
    costs.weight_grad_ns.push_back(sum(&PartCosts::weight_grad_ns));
    if (config.data > 1 && !(site->device.intra_node_bandwidth_bytes_per_s > 0)) {
      return absl::InvalidArgumentError(
          fmt::format("site \"{}\": device.intra_node_bandwidth is not given, and parallelism.data {} needs it",
                      site->name, config.data));
    }
    epilogue.update_ns.push_back(UpdateNs(job, config, *site, stage.layers, parts.adamw_ns_per_parameter));
  }
  for (size_t stage = 1; stage < plan.stages.size(); ++stage) {
    GP_ASSIGN_OR_RETURN(BoundaryCost boundary,
                        BoundaryCostBetween(cluster, plan.stages[stage - 1].site, plan.stages[stage].site,
                                            BoundaryMessageBytes(job.model, config), config.data));
    AddMessageOverhead(profile, plan.stages[stage - 1].site, plan.stages[stage].site, plan.comm, boundary);
    costs.boundaries.push_back(std::move(boundary));
  }
  costs.memory = MemoryCostsOf(job, plan);
  GP_ASSIGN_OR_RETURN(epilogue.latencies_ns, StageLatencies(cluster, profile, plan));
  GP_ASSIGN_OR_RETURN(epilogue.tied_ns, TiedExchangeNs(job, cluster, config, plan));
  costs.epilogue_ns = EpilogueNs(costs, epilogue);
  GP_RETURN_IF_ERROR(ValidateCosts(costs));
  return costs;
}

int64_t WanBytesPerIteration(const JobSpec& job, const Plan& plan) {
  const ExecutionConfig config = ConfigOfPlan(job, plan);
  return 2 * static_cast<int64_t>(plan.delta_n.size()) * plan.micro_batches * config.data *
         BoundaryMessageBytes(job.model, config);
}

absl::StatusOr<int64_t> PathLatencyNs(const ClusterSpec& cluster, std::string_view from, std::string_view to) {
  // Bellman-Ford: few sites, few links.
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
