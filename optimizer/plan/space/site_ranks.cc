#include "optimizer/plan/space/site_ranks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/fastest_costs.h"
#include "optimizer/plan/space/placement.h"

namespace geopipe {
namespace {

// Times of a layer for one micro-batch on each of the sites; empty if a device figure is missing.
std::vector<int64_t> LayerTimes(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                const SiteOrder& sites) {
  const ExecutionConfig config =
      MakeExecutionConfig(job, job.search.micro_batch_size.front(), job.search.sequence_length.front(),
                          RecomputeModes(job).front(), ZeroStages(job).front());
  std::vector<int64_t> times;
  for (const std::string& name : sites) {
    const std::optional<ModelCosts> costs = FastestCosts(job.model, source, config, *cluster.FindSite(name));
    if (!costs.has_value()) {
      return {};
    }
    times.push_back(costs->block.forward_ns + costs->block.input_grad_ns + costs->block.weight_grad_ns);
  }
  return times;
}

}  // namespace

std::vector<int64_t> RanksBySpeed(int64_t ranks, std::span<const int64_t> slots, std::span<const int64_t> layer_ns) {
  std::vector<int64_t> shares(slots.size(), 1);
  std::map<int64_t, std::vector<size_t>> alike;
  for (size_t site = 0; site < slots.size(); ++site) {
    alike[layer_ns[site]].push_back(site);
  }
  int64_t left = ranks - std::ssize(slots);
  for (const auto& [time_ns, sites] : alike) {
    std::vector<int64_t> room;
    int64_t most = 0;
    for (const size_t site : sites) {
      room.push_back(slots[site]);
      most += slots[site] - 1;
    }
    const int64_t here = std::min(left, most);
    const std::vector<int64_t> shared = ShareStages(here + std::ssize(sites), room);
    for (size_t i = 0; i < sites.size(); ++i) {
      shares[sites[i]] = shared[i];
    }
    left -= here;
  }
  return shares;
}

absl::StatusOr<Plan> PlaceBySpeed(const JobSpec& job, const ClusterSpec& cluster, const CostSource& source,
                                  const SiteOrder& sites, const std::vector<int64_t>& ranks) {
  std::vector<int64_t> slots;
  for (const std::string& name : sites) {
    const SiteSpec* site = cluster.FindSite(name);
    const absl::StatusOr<int64_t> count = site == nullptr ? absl::StatusOr<int64_t>(0) : StageSlots(job, *site);
    if (!count.ok() || *count == 0) {
      return PlaceStages(job, cluster, sites, ranks);  // says why not
    }
    slots.push_back(*count);
  }
  const int64_t room = std::accumulate(slots.begin(), slots.end(), int64_t{0});
  const int64_t asked = job.parallelism.pipeline;
  const int64_t stages = asked > 0 ? asked : std::min(room, job.model.num_hidden_layers / MinStagesPerRank(job));
  if (!ranks.empty() || stages < std::ssize(sites) || stages >= room) {
    return PlaceStages(job, cluster, sites, ranks);
  }
  const std::vector<int64_t> layer_ns = LayerTimes(job, cluster, source, sites);
  return PlaceStages(job, cluster, sites,
                     layer_ns.empty() ? std::vector<int64_t>{} : RanksBySpeed(stages, slots, layer_ns));
}

}  // namespace geopipe
