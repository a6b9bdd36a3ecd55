#include "coordinator/core/cluster/allocation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/given_costs.h"
#include "proto/wire/cluster_wire.h"

namespace geopipe {
namespace {

struct SiteOffer {
  int64_t registered = 0;  // devices, as many as whole stages take
  int64_t free = 0;        // that can be taken together
  int64_t per_node = 0;    // of each of
  std::vector<const NodeOffer*> nodes;
  std::set<std::string> holders;
};

// Devices of one stage and its replicas, and of these the ones that have to be on one node.
struct StageDevices {
  int64_t all = 1;
  int64_t together = 1;
};

int64_t WholeGroups(int64_t devices, int64_t per_group) { return devices / per_group * per_group; }

// The replicas of a stage go over nodes whose network is known.
StageDevices DevicesPerStage(const JobSpec& job, const RunOptions& run, bool has_network) {
  if (run.explicit_costs.has_value()) {
    return {};
  }
  const int64_t tensor = std::max<int64_t>(1, job.parallelism.tensor);
  const int64_t all = tensor * std::max<int64_t>(1, job.parallelism.data);
  return {.all = all, .together = has_network ? tensor : all};
}

// How many free devices to take of each node that has so many, so that they are as many as can be.
int64_t PerNode(std::span<const NodeOffer* const> nodes, int64_t per_group) {
  int64_t best = 0;
  int64_t best_total = 0;
  for (const NodeOffer* each : nodes) {
    const int64_t count = WholeGroups(std::ssize(each->free), per_group);
    const int64_t total =
        count * std::ranges::count_if(nodes, [&](const NodeOffer* node) { return std::ssize(node->free) >= count; });
    if (std::tie(total, count) > std::tie(best_total, best)) {
      best = count;
      best_total = total;
    }
  }
  return best;
}

std::map<std::string, SiteOffer> SiteOffers(const JobSpec& job, const RunOptions& run,
                                            std::span<const NodeOffer> offers) {
  std::map<std::string, SiteOffer> by_site;
  for (const NodeOffer& offer : offers) {
    SiteOffer& site = by_site[offer.key.site];
    site.holders.insert(offer.holders.begin(), offer.holders.end());
    site.nodes.push_back(&offer);
  }
  for (auto& [name, site] : by_site) {
    const bool has_network =
        std::ranges::all_of(site.nodes, [](const NodeOffer* node) { return node->spec.has_network(); });
    const StageDevices per_stage = DevicesPerStage(job, run, has_network);
    for (const NodeOffer* node : site.nodes) {
      site.registered += WholeGroups(node->spec.devices(), per_stage.together);
    }
    const int64_t per_node = PerNode(site.nodes, per_stage.together);
    std::erase_if(site.nodes,
                  [&](const NodeOffer* node) { return per_node == 0 || std::ssize(node->free) < per_node; });
    site.per_node = per_node;
    site.registered = WholeGroups(site.registered, per_stage.all);
    site.free = WholeGroups(per_node * std::ssize(site.nodes), per_stage.all);
  }
  return by_site;
}

std::string Waiting(std::string_view what, const SiteOffer& offer, int64_t needed) {
  if (offer.registered < needed) {
    return fmt::format("waiting for {}: {} of {} devices", what, offer.registered, needed);
  }
  return fmt::format("waiting for job {}, which holds devices of {}: {} of {} devices are free",
                     fmt::join(offer.holders, ", "), what, offer.free, needed);
}

absl::StatusOr<NetworkSpec> NetworkOf(const v1::NodeSpec& node) {
  return node.has_network() ? FromProto(node.network()) : NetworkSpec();
}

std::vector<std::string> SitesOf(const JobSpec& job, const std::map<std::string, SiteOffer>& offers) {
  if (!job.placement.sites.empty()) {
    return job.placement.sites;
  }
  std::vector<std::string> sites;
  for (const auto& [name, offer] : offers) {
    if (offer.registered > 0) {
      sites.push_back(name);
    }
  }
  return sites;
}

}  // namespace

std::vector<NodeKey> Allocation::nodes() const {
  std::vector<NodeKey> keys;
  for (const AllocatedSite& site : sites) {
    for (const AllocatedNode& node : site.nodes) {
      keys.push_back({site.name, node.spec.node()});
    }
  }
  return keys;
}

std::vector<WorkerKey> Allocation::workers() const {
  std::vector<WorkerKey> keys;
  for (const AllocatedSite& site : sites) {
    for (const AllocatedNode& node : site.nodes) {
      for (const int32_t device : node.devices) {
        keys.push_back({site.name, node.spec.node(), device});
      }
    }
  }
  return keys;
}

std::vector<std::string> Allocation::site_names() const {
  std::vector<std::string> names;
  for (const AllocatedSite& site : sites) {
    names.push_back(site.name);
  }
  return names;
}

int64_t Allocation::devices() const { return static_cast<int64_t>(workers().size()); }

AllocationDecision DecideAllocation(const JobSpec& job, const RunOptions& run, std::span<const NodeOffer> offers) {
  const bool is_explicit = run.explicit_costs.has_value();
  const int64_t per_stage = DevicesPerStage(job, run, /*has_network=*/false).all;
  std::map<std::string, SiteOffer> by_site = SiteOffers(job, run, offers);
  const std::vector<std::string> sites = SitesOf(job, by_site);
  if (sites.empty()) {
    return {.allocation = std::nullopt, .reason = "waiting for agents: none has registered"};
  }
  const std::vector<int32_t> explicit_stages =
      is_explicit ? StagesPerSite(*run.explicit_costs) : std::vector<int32_t>();
  GP_CHECK(!is_explicit || explicit_stages.size() == sites.size(), "CheckRunnable matches sites with crossings");
  SiteOffer total;
  for (size_t i = 0; i < sites.size(); ++i) {
    const SiteOffer& offer = by_site[sites[i]];
    const int64_t needed = is_explicit ? explicit_stages[i] : per_stage;
    if (offer.free < needed) {
      return {.allocation = std::nullopt, .reason = Waiting(fmt::format("site {}", sites[i]), offer, needed)};
    }
    total.registered += offer.registered;
    total.free += offer.free;
    total.holders.insert(offer.holders.begin(), offer.holders.end());
  }
  const int64_t needed = is_explicit ? 0 : job.parallelism.pipeline * per_stage;
  if (total.free < needed) {
    return {.allocation = std::nullopt,
            .reason = Waiting(fmt::format("sites {}", fmt::join(sites, ", ")), total, needed)};
  }

  Allocation allocation;
  for (const std::string& site : sites) {
    AllocatedSite& allocated = allocation.sites.emplace_back();
    allocated.name = site;
    for (const NodeOffer* node : by_site[site].nodes) {
      allocated.nodes.push_back({.spec = node->spec,
                                 .devices = {node->free.begin(), node->free.begin() + by_site[site].per_node},
                                 .orphan_grace_ns = node->orphan_grace_ns});
    }
    std::ranges::sort(allocated.nodes, {}, [](const AllocatedNode& node) { return node.spec.node(); });
  }
  const int64_t devices = allocation.devices();
  return {.allocation = std::move(allocation),
          .reason = fmt::format("{} devices at {} are free", devices, fmt::join(sites, ", "))};
}

absl::StatusOr<ClusterSpec> ClusterOf(const Allocation& allocation) {
  ClusterSpec cluster;
  for (const AllocatedSite& site : allocation.sites) {
    const v1::NodeSpec& first = site.nodes.front().spec;
    GP_ASSIGN_OR_RETURN(const DeviceSpec device, FromProto(first.device()));
    GP_ASSIGN_OR_RETURN(const NetworkSpec network, NetworkOf(first));
    for (const AllocatedNode& each : site.nodes) {
      const v1::NodeSpec& node = each.spec;
      GP_ASSIGN_OR_RETURN(const DeviceSpec other, FromProto(node.device()));
      GP_ASSIGN_OR_RETURN(const NetworkSpec other_network, NetworkOf(node));
      if (other_network != network || node.network_is_shaped() != first.network_is_shaped()) {
        return absl::FailedPreconditionError(
            fmt::format("nodes {} and {} of site {} declare different networks; give `network` the same values in the "
                        "configuration of all agents of the site",
                        first.node(), node.node(), site.name));
      }
      if (node.devices() != first.devices() || other != device) {
        return absl::FailedPreconditionError(
            fmt::format("nodes {} and {} of site {} have different devices; give the nodes of a site equal devices, or "
                        "put them in different sites",
                        first.node(), node.node(), site.name));
      }
    }
    cluster.sites.push_back({.name = site.name,
                             .nodes = static_cast<int64_t>(site.nodes.size()),
                             .devices_per_node = std::ssize(site.nodes.front().devices),
                             .device = device,
                             .network = network});
  }
  return cluster;
}

}  // namespace geopipe
