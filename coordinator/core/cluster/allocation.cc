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
  int64_t registered = 0;  // devices in groups of one stage on one node
  int64_t free = 0;        // that can be taken together
  int64_t per_node = 0;    // of each of
  std::vector<const NodeOffer*> nodes;
  std::set<std::string> holders;
};

// Of a node's devices those that can carry stages of so many: whole groups of them.
int64_t StageDevices(int64_t devices, int64_t per_stage) { return devices / per_stage * per_stage; }

// How many free devices to take of each node that has so many, so that they are as many as can be.
int64_t PerNode(std::span<const NodeOffer* const> nodes, int64_t per_stage) {
  int64_t best = 0;
  int64_t best_total = 0;
  for (const NodeOffer* each : nodes) {
    const int64_t count = StageDevices(std::ssize(each->free), per_stage);
    const int64_t total =
        count * std::ranges::count_if(nodes, [&](const NodeOffer* node) { return std::ssize(node->free) >= count; });
    if (std::tie(total, count) > std::tie(best_total, best)) {
      best = count;
      best_total = total;
    }
  }
  return best;
}

std::string Waiting(std::string_view what, const SiteOffer& offer, int64_t needed) {
  if (offer.registered < needed) {
    return fmt::format("waiting for {}: {} of {} devices", what, offer.registered, needed);
  }
  return fmt::format("waiting for job {}, which holds devices of {}: {} of {} devices are free",
                     fmt::join(offer.holders, ", "), what, offer.free, needed);
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
  const int64_t per_stage =
      is_explicit ? 1 : std::max<int64_t>(1, job.parallelism.tensor) * std::max<int64_t>(1, job.parallelism.data);
  std::map<std::string, SiteOffer> by_site;
  for (const NodeOffer& offer : offers) {
    SiteOffer& site = by_site[offer.key.site];
    site.registered += StageDevices(offer.spec.devices(), per_stage);
    site.holders.insert(offer.holders.begin(), offer.holders.end());
    site.nodes.push_back(&offer);
  }
  for (auto& [name, site] : by_site) {
    const int64_t per_node = PerNode(site.nodes, per_stage);
    std::erase_if(site.nodes,
                  [&](const NodeOffer* node) { return per_node == 0 || std::ssize(node->free) < per_node; });
    site.per_node = per_node;
    site.free = per_node * std::ssize(site.nodes);
  }
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
    for (const AllocatedNode& each : site.nodes) {
      const v1::NodeSpec& node = each.spec;
      GP_ASSIGN_OR_RETURN(const DeviceSpec other, FromProto(node.device()));
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
                             .device = device});
  }
  return cluster;
}

}  // namespace geopipe
