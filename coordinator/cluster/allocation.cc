#include "coordinator/cluster/allocation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "optimizer/plan/given_costs.h"
#include "proto/wire/cluster_wire.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

// A node with as many of its free devices as can be taken.
struct TakenNode {
  const NodeOffer* offer = nullptr;
  int64_t devices = 0;
};

struct SiteOffer {
  int64_t registered = 0;  // devices, as many as whole stages take
  int64_t free = 0;        // free devices that can be taken together
  std::vector<TakenNode> nodes;
  std::set<std::string> holders;
};

// Devices of one stage and its replicas, and the number of these that must be on one node.
struct StageDevices {
  int64_t all = 1;
  int64_t together = 1;
};

int64_t WholeGroups(int64_t devices, int64_t per_group) { return devices / per_group * per_group; }

// The replicas of a stage may be on several nodes if their network is known.
StageDevices DevicesPerStage(const JobSpec& job, const RunOptions& run, bool has_network) {
  if (run.explicit_costs.has_value()) {
    return {};
  }
  const int64_t tensor = std::max<int64_t>(1, job.parallelism.tensor);
  const int64_t all = tensor * std::max<int64_t>(1, job.parallelism.data);
  return {.all = all, .together = has_network ? tensor : all};
}

// Chooses how many free devices to take of each node that has as many, so that the most devices are used.
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

// True when the planner may treat two nodes of a site as equal.
bool AreAlike(const v1::NodeSpec& a, const v1::NodeSpec& b) {
  return a.devices() == b.devices() && a.device().SerializeAsString() == b.device().SerializeAsString();
}

// The nodes in groups of those that are alike, in the order of their first.
std::vector<std::vector<const NodeOffer*>> GroupsOf(const std::vector<const NodeOffer*>& nodes) {
  std::vector<std::vector<const NodeOffer*>> groups;
  for (const NodeOffer* node : nodes) {
    const auto known =
        std::ranges::find_if(groups, [&](const auto& group) { return AreAlike(group.front()->spec, node->spec); });
    if (known == groups.end()) {
      groups.push_back({node});
    } else {
      known->push_back(node);
    }
  }
  return groups;
}

// The reason why the node's workers cannot run the backend; nullptr: they can.
const std::string* RefusalOf(const v1::NodeSpec& node, BackendKind backend) {
  const auto refused = std::ranges::find(node.refused_backends(), ToProto(backend), &v1::RefusedBackend::backend);
  return refused == node.refused_backends().end() ? nullptr : &refused->reason();
}

SiteOffer OfferOf(const JobSpec& job, const RunOptions& run, const std::vector<const NodeOffer*>& nodes) {
  SiteOffer site;
  const bool has_network = std::ranges::all_of(nodes, [](const NodeOffer* node) { return node->spec.has_network(); });
  const StageDevices per_stage = DevicesPerStage(job, run, has_network);
  for (const std::vector<const NodeOffer*>& group : GroupsOf(nodes)) {
    const int64_t per_node = PerNode(group, per_stage.together);
    int64_t registered = 0;
    int64_t free = 0;
    for (const NodeOffer* node : group) {
      site.holders.insert(node->holders.begin(), node->holders.end());
      registered += WholeGroups(node->spec.devices(), per_stage.together);
      if (per_node > 0 && std::ssize(node->free) >= per_node) {
        site.nodes.push_back({node, per_node});
        free += per_node;
      }
    }
    site.registered += WholeGroups(registered, per_stage.all);
    site.free += WholeGroups(free, per_stage.all);
  }
  return site;
}

std::map<std::string, SiteOffer> SiteOffers(const JobSpec& job, const RunOptions& run,
                                            std::span<const NodeOffer> offers) {
  std::map<std::string, std::vector<const NodeOffer*>> nodes;
  for (const NodeOffer& offer : offers) {
    if (CanRun(offer, run.backend)) {
      nodes[offer.key.site].push_back(&offer);
    }
  }
  std::map<std::string, SiteOffer> by_site;
  for (const auto& [name, of_site] : nodes) {
    by_site[name] = OfferOf(job, run, of_site);
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

std::set<NodeKey> Allocation::nodes() const {
  std::set<NodeKey> keys;
  for (const AllocatedSite& site : sites) {
    for (const AllocatedNode& node : site.nodes) {
      keys.insert({site.name, node.spec.node()});
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

bool CanRun(const NodeOffer& node, BackendKind backend) { return RefusalOf(node.spec, backend) == nullptr; }

absl::Status CheckBackend(const JobSpec& job, const RunOptions& run, std::span<const NodeOffer> offers) {
  std::vector<std::string> sites = job.placement.sites;
  if (sites.empty()) {
    sites.emplace_back();  // any
  }
  for (const std::string& site : sites) {
    const NodeOffer* first = nullptr;
    bool runs = false;
    for (const NodeOffer& offer : offers) {
      if (site.empty() || offer.key.site == site) {
        runs = runs || CanRun(offer, run.backend);
        first = first == nullptr ? &offer : first;
      }
    }
    if (!runs && first != nullptr) {
      return absl::FailedPreconditionError(fmt::format(
          "{} run backend {}: node {}: {}", site.empty() ? "no site can" : fmt::format("site {} cannot", site),
          BackendKindName(run.backend), DisplayName(first->key), *RefusalOf(first->spec, run.backend)));
    }
  }
  return absl::OkStatus();
}

std::string AskedFor(const JobSpec& job, const RunOptions& run) {
  const std::vector<int32_t> stages =
      run.explicit_costs.has_value() ? StagesPerSite(*run.explicit_costs) : std::vector<int32_t>();
  return fmt::format("{} at {} of {} x {} x {} for {}{}", BackendKindName(run.backend),
                     fmt::join(job.placement.sites, ","), job.parallelism.tensor, job.parallelism.data,
                     job.parallelism.pipeline, fmt::join(stages, ","), run.pace ? ", paced" : "");
}

AllocationDecision DecideAllocation(const JobSpec& job, const RunOptions& run, std::span<const NodeOffer> offers) {
  if (const absl::Status able = CheckBackend(job, run, offers); !able.ok()) {
    return {.allocation = std::nullopt, .reason = fmt::format("waiting: {}", std::string(able.message()))};
  }
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
    for (const TakenNode& node : by_site[site].nodes) {
      allocated.nodes.push_back({.spec = node.offer->spec,
                                 .devices = {node.offer->free.begin(), node.offer->free.begin() + node.devices},
                                 .orphan_grace_ns = node.offer->orphan_grace_ns});
    }
    std::ranges::sort(allocated.nodes, {}, [](const AllocatedNode& node) { return node.spec.node(); });
  }
  const int64_t devices = allocation.devices();
  return {.allocation = std::move(allocation),
          .reason = fmt::format("{} devices at {} are free", devices, fmt::join(sites, ", "))};
}

absl::StatusOr<AllocatedCluster> ClusterOf(const Allocation& allocation) {
  AllocatedCluster allocated;
  for (const AllocatedSite& site : allocation.sites) {
    const v1::NodeSpec& first = site.nodes.front().spec;
    GP_ASSIGN_OR_RETURN(const NetworkSpec network, NetworkOf(first));
    std::vector<SiteSpec> groups;
    std::vector<std::vector<int32_t>> positions;  // of each group's nodes
    for (int32_t position = 0; position < std::ssize(site.nodes); ++position) {
      const AllocatedNode& node = site.nodes[position];
      GP_ASSIGN_OR_RETURN(const DeviceSpec device, FromProto(node.spec.device()));
      GP_ASSIGN_OR_RETURN(const NetworkSpec other_network, NetworkOf(node.spec));
      if (other_network != network || node.spec.network_is_shaped() != first.network_is_shaped()) {
        return absl::FailedPreconditionError(
            fmt::format("nodes {} and {} of site {} declare different networks; give `network` the same values in the "
                        "configuration of all agents of the site",
                        first.node(), node.spec.node(), site.name));
      }
      const auto devices = std::ssize(node.devices);
      const auto known = std::ranges::find_if(
          groups, [&](const SiteSpec& group) { return group.device == device && group.devices_per_node == devices; });
      if (known != groups.end()) {
        ++known->nodes;
        // The least that is told: nodes that are alike need not have the same to the byte.
        known->host_memory_bytes = std::min(known->host_memory_bytes, node.spec.host_memory_bytes());
        positions[static_cast<size_t>(known - groups.begin())].push_back(position);
        continue;
      }
      groups.push_back({.name = site.name,
                        .nodes = 1,
                        .devices_per_node = devices,
                        .device = device,
                        .network = network,
                        .host_memory_bytes = node.spec.host_memory_bytes()});
      positions.push_back({position});
    }
    std::vector<std::string> names;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups.size() > 1) {
        names.push_back(GroupName(groups[i].device.kind, names));
        groups[i].name = fmt::format("{}/{}", site.name, names.back());
      }
      allocated.nodes[groups[i].name] = std::move(positions[i]);
      allocated.cluster.sites.push_back(std::move(groups[i]));
    }
  }
  return allocated;
}

Profile ProfileOfGroups(Profile profile, const Allocation& allocation, const GroupedNodes& groups) {
  std::map<NodeKey, std::string> group_of;
  for (const AllocatedSite& site : allocation.sites) {
    for (const auto& [group, nodes] : groups) {
      for (const int32_t node : SiteOfGroup(group) == site.name ? nodes : std::vector<int32_t>{}) {
        group_of[{site.name, site.nodes[static_cast<size_t>(node)].spec.node()}] = group;
      }
    }
  }
  const auto rename = [&](auto& measured) {
    const auto found = group_of.find({measured.site, measured.node});
    measured.site = found == group_of.end() ? measured.site : found->second;
  };
  std::ranges::for_each(profile.entries, rename);
  std::ranges::for_each(profile.messages, rename);
  return profile;
}

}  // namespace geopipe
