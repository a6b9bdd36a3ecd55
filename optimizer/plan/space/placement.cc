#include "optimizer/plan/space/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

int64_t DevicesPerStage(const JobSpec& job) {
  return std::max<int64_t>(1, job.parallelism.tensor) * std::max<int64_t>(1, job.parallelism.data);
}

// Number of tensor groups that fit on a node.
int64_t GroupsPerNode(const JobSpec& job, const SiteSpec& site) {
  return site.devices_per_node / std::max<int64_t>(1, job.parallelism.tensor);
}

// "1 stage", "2 stages".
std::string Counted(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

absl::Status CheckPipeline(const JobSpec& job, int64_t stages, int64_t total_slots,
                           const std::vector<std::string>& sites) {
  if (stages > total_slots) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.pipeline is {}, but the sites have room for {} of {}; lower it or add devices", stages,
                    Counted(total_slots, "stage"), Counted(DevicesPerStage(job), "device")));
  }
  if (stages < static_cast<int64_t>(sites.size())) {
    return absl::InvalidArgumentError(
        fmt::format("placement.sites lists {} sites, and every one gets at least one stage, but {} is {}; {}list fewer",
                    sites.size(), job.parallelism.pipeline > 0 ? "parallelism.pipeline" : "model.num_hidden_layers",
                    job.parallelism.pipeline > 0 ? stages : job.model.num_hidden_layers,
                    job.parallelism.pipeline > 0 ? "raise it or " : ""));
  }
  return absl::OkStatus();
}

// Number of ordered selections of at least one of `count`, at most about kMaxTriedOrders.
int64_t OrderedSelectionCount(int64_t count) {
  int64_t selections = 0;
  int64_t of_length = 1;
  for (int64_t left = count; left > 0 && selections <= kMaxTriedOrders; --left) {
    of_length *= left;
    selections += of_length;
  }
  return selections;
}

// Number of orders of groups that pass every site at most once, by the groups of each site: at most about
// kMaxTriedOrders.
int64_t OrderCount(const std::map<std::string_view, int64_t>& groups_of_sites) {
  std::vector<int64_t> of_length{1};  // by number of sites: in any order, each with its selections of groups
  for (const auto& [site, groups] : groups_of_sites) {
    of_length.push_back(0);
    for (size_t length = of_length.size() - 1; length > 0; --length) {
      const int64_t added = of_length[length - 1] * OrderedSelectionCount(groups);
      of_length[length] = std::min(kMaxTriedOrders + 1, of_length[length] + added);
    }
  }
  int64_t orders = 0;
  int64_t permutations = 1;
  for (size_t length = 1; length < of_length.size() && permutations <= kMaxTriedOrders; ++length) {
    permutations *= static_cast<int64_t>(length);
    orders = std::min(kMaxTriedOrders + 1, orders + of_length[length] * permutations);
  }
  return permutations > kMaxTriedOrders ? kMaxTriedOrders + 1 : orders;
}

// All ordered selections of at least one of these, longer ones first, of sites whose neighbours have links.
std::vector<std::vector<std::string>> OrderedSelections(const ClusterSpec& cluster,
                                                        const std::vector<const SiteSpec*>& sites) {
  std::vector<std::vector<std::string>> orders;
  std::vector<std::vector<std::string>> shorter{{}};
  for (size_t length = 1; length <= sites.size(); ++length) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& order : shorter) {
      for (const SiteSpec* site : sites) {
        if (std::find(order.begin(), order.end(), site->name) == order.end()) {
          longer.push_back(order);
          longer.back().push_back(site->name);
        }
      }
    }
    std::erase_if(longer, [&](const auto& order) { return !Linked(cluster, order); });
    orders.insert(orders.begin(), longer.begin(), longer.end());
    shorter = std::move(longer);
  }
  return orders;
}

std::vector<std::string> NamesOf(const std::vector<const SiteSpec*>& groups) {
  std::vector<std::string> names;
  names.reserve(groups.size());
  for (const SiteSpec* group : groups) {
    names.push_back(group->name);
  }
  return names;
}

// The orders of groups of the job's sites, in its order.
std::vector<std::vector<std::string>> OrdersOfGroups(const ClusterSpec& cluster,
                                                     const std::vector<std::string>& sites) {
  std::vector<std::vector<std::string>> orders{{}};
  std::vector<std::string> all;
  for (const std::string& site : sites) {
    const std::vector<const SiteSpec*> groups = cluster.GroupsOf(site);
    std::vector<std::string> names = NamesOf(groups);
    if (names.empty()) {
      names.push_back(site);  // which is not known: for PlaceStages to refuse
    }
    std::vector<std::vector<std::string>> selections;
    if (names.size() == 1) {
      selections.push_back(names);
    } else {
      selections = OrderedSelections(cluster, groups);
    }
    all.insert(all.end(), names.begin(), names.end());
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& selection : selections) {
      for (size_t i = 0; i < orders.size() && std::ssize(longer) <= kMaxTriedOrders; ++i) {
        longer.push_back(orders[i]);
        longer.back().insert(longer.back().end(), selection.begin(), selection.end());
      }
    }
    orders = std::move(longer);
  }
  if (std::ssize(orders) > kMaxTriedOrders) {
    return {all};
  }
  return orders;
}

constexpr int64_t kNoLink = std::numeric_limits<int64_t>::max();

struct Walk {
  int64_t latency_ns = 0;
  std::vector<size_t> sites;
};

// A walk from `start` to the nearest not yet visited, by latency; ends after `count` or where no link leads on.
// `latency_ns`: from each to each, kNoLink if there is none. `site_of`: of a group; a walk does not come back to a
// site.
Walk NearestNeighbourWalk(const std::vector<std::vector<int64_t>>& latency_ns,
                          const std::vector<std::string_view>& site_of, size_t start, int64_t count) {
  Walk walk{.latency_ns = 0, .sites = {start}};
  std::vector<bool> visited(latency_ns.size(), false);
  visited[start] = true;
  while (std::ssize(walk.sites) < count) {
    const std::vector<int64_t>& from = latency_ns[walk.sites.back()];
    size_t nearest = start;
    for (size_t site = 0; site < from.size(); ++site) {
      if (!visited[site] && from[site] != kNoLink && (nearest == start || from[site] < from[nearest])) {
        nearest = site;
      }
    }
    if (nearest == start) {
      break;
    }
    for (size_t site = 0; site < from.size(); ++site) {
      const std::string_view left = site_of[walk.sites.back()];
      visited[site] = visited[site] || site == nearest || (site_of[site] == left && left != site_of[nearest]);
    }
    walk.latency_ns += from[nearest];
    walk.sites.push_back(nearest);
  }
  return walk;
}

}  // namespace

std::vector<int64_t> ShareStages(int64_t stages, const std::vector<int64_t>& slots) {
  const int64_t total = std::accumulate(slots.begin(), slots.end(), int64_t{0});
  const auto sites = static_cast<int64_t>(slots.size());
  // Every site has one; the others are shared in proportion to the rest of each site.
  const int64_t others = stages - sites;
  const int64_t room = total - sites;
  std::vector<int64_t> shares(slots.size(), 1);
  if (others == 0) {
    return shares;
  }
  std::vector<std::pair<int64_t, size_t>> remainders;  // negated remainder, site: sorts largest remainder first
  int64_t given = 0;
  for (size_t site = 0; site < slots.size(); ++site) {
    const int64_t scaled = others * (slots[site] - 1);
    shares[site] += scaled / room;
    given += scaled / room;
    remainders.emplace_back(-(scaled % room), site);
  }
  std::sort(remainders.begin(), remainders.end());
  for (int64_t i = 0; i < others - given; ++i) {
    ++shares[remainders[i].second];
  }
  return shares;
}

bool Linked(const ClusterSpec& cluster, const std::vector<std::string>& sites) {
  for (size_t i = 1; i < sites.size(); ++i) {
    if (cluster.FindLink(sites[i - 1], sites[i]) == nullptr) {
      return false;
    }
  }
  return GroupsStandTogether(sites);
}

absl::StatusOr<int64_t> StageSlots(const JobSpec& job, const SiteSpec& site) {
  const int64_t data = std::max<int64_t>(1, job.parallelism.data);
  if (GroupsPerNode(job, site) == 0) {
    return absl::InvalidArgumentError(
        fmt::format("parallelism.tensor is {}; the tensor ranks of a stage share one node, and a node of site \"{}\" "
                    "has {} devices; lower it",
                    job.parallelism.tensor, site.name, site.devices_per_node));
  }
  const int64_t groups = site.nodes * GroupsPerNode(job, site);
  if (site.network.given() && groups < data) {
    return absl::InvalidArgumentError(fmt::format(
        "parallelism.data is {}; the replicas of a stage share one site, and site \"{}\" has room for {} of tensor {}; "
        "lower it",
        data, site.name, groups, std::max<int64_t>(1, job.parallelism.tensor)));
  }
  if (site.network.given()) {
    return groups / data;
  }
  if (GroupsPerNode(job, site) < data) {
    const int64_t tensor = std::max<int64_t>(1, job.parallelism.tensor);
    return absl::InvalidArgumentError(fmt::format(
        "parallelism.data is {}; without a network between its nodes the replicas of a stage share one node, {} "
        "devices with tensor {}, and a node of site \"{}\" has {}; lower it, or give the site's network in the "
        "topology",
        data, data * tensor, tensor, site.name, site.devices_per_node));
  }
  return site.nodes * (GroupsPerNode(job, site) / data);
}

void PlaceOnSite(const SiteSpec& site, int64_t count, const std::vector<LayerRange>& layers, Plan& plan) {
  const int32_t tensor = plan.grid.tensor;
  const int32_t data = plan.grid.data;
  const auto per_node = static_cast<int32_t>(site.devices_per_node);
  const int32_t groups = per_node / tensor;
  // Replicas share a node, unless that leaves too few stages.
  const bool together = data <= groups && site.nodes * (groups / data) >= count;
  std::vector<int32_t> used(static_cast<size_t>(site.nodes), 0);  // devices, by node
  std::vector<DevicePlace> places;
  int32_t node = 0;
  for (int64_t stage = 0; stage < count; ++stage) {
    places.clear();
    for (int32_t replica = 0; replica < data; ++replica) {
      const int32_t wanted = together && replica == 0 ? tensor * data : tensor;
      while (used[node] + wanted > per_node) {
        ++node;
        GP_CHECK(node < site.nodes, "site {} does not hold {} stages", site.name, count);
      }
      for (int32_t i = 0; i < tensor; ++i) {
        places.push_back({.node = node, .device = used[node]++});
      }
    }
    plan.Append({.site = site.name, .capacity_bytes = site.device.usable_bytes()}, layers[plan.stages.size()], places);
  }
  for (int32_t each = 0; each < site.nodes; ++each) {
    if (used[each] < per_node) {
      std::vector<int32_t> left(per_node - used[each]);
      std::iota(left.begin(), left.end(), used[each]);
      plan.idle.push_back({site.name, each, std::move(left)});
    }
  }
}

absl::StatusOr<Plan> PlaceStages(const JobSpec& job, const ClusterSpec& cluster, const std::vector<std::string>& sites,
                                 const std::vector<int64_t>& ranks) {
  GP_CHECK(!sites.empty());
  std::vector<int64_t> slots;
  for (size_t i = 0; i < sites.size(); ++i) {
    const SiteSpec* site = cluster.FindSite(sites[i]);
    if (site == nullptr) {
      return cluster.UnknownSite(sites[i]);
    }
    if (i > 0 && cluster.FindLink(sites[i - 1], sites[i]) == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("placement.sites puts \"{}\" before \"{}\", but the topology has no link between them",
                      sites[i - 1], sites[i]));
    }
    if (!GroupsStandTogether({sites.begin(), sites.begin() + static_cast<std::ptrdiff_t>(i) + 1})) {
      return absl::InvalidArgumentError(fmt::format(
          "placement.sites comes back to site \"{}\"; list its groups next to each other", SiteOfGroup(sites[i])));
    }
    GP_ASSIGN_OR_RETURN(const int64_t count, StageSlots(job, *site));
    slots.push_back(count);
  }
  const int64_t total = std::accumulate(slots.begin(), slots.end(), int64_t{0});
  const int64_t stages = job.parallelism.pipeline > 0
                             ? job.parallelism.pipeline
                             : std::min(total, job.model.num_hidden_layers / MinStagesPerRank(job));
  GP_RETURN_IF_ERROR(CheckPipeline(job, stages, total, sites));

  const std::vector<LayerRange> layers = SplitLayers(job.model, stages);
  GP_CHECK(ranks.empty() || ranks.size() == sites.size());
  const std::vector<int64_t> shares = ranks.empty() ? ShareStages(stages, slots) : ranks;
  Plan plan;
  plan.grid.data = static_cast<int32_t>(std::max<int64_t>(1, job.parallelism.data));
  plan.grid.tensor = static_cast<int32_t>(std::max<int64_t>(1, job.parallelism.tensor));
  for (size_t i = 0; i < sites.size(); ++i) {
    PlaceOnSite(*cluster.FindSite(sites[i]), shares[i], layers, plan);
  }
  GP_CHECK(static_cast<int64_t>(plan.stages.size()) == stages);
  return plan;
}

OrderClasses::OrderClasses(const ClusterSpec& cluster) {
  const auto kind_of = [](auto& kinds, auto nameless) {
    const auto known = std::ranges::find(kinds, nameless);
    if (known != kinds.end()) {
      return static_cast<int32_t>(known - kinds.begin());
    }
    kinds.push_back(std::move(nameless));
    return static_cast<int32_t>(kinds.size() - 1);
  };
  std::vector<SiteSpec> site_kinds;
  for (SiteSpec site : cluster.sites) {
    std::string name = std::exchange(site.name, "");
    sites_[std::move(name)] = kind_of(site_kinds, std::move(site));
  }
  std::vector<std::pair<bool, LinkSpec>> link_kinds;  // inside a site or not
  for (LinkSpec link : cluster.links) {
    const bool inside = link.inside();
    const std::string a = std::exchange(link.site_a, "");
    const std::string b = std::exchange(link.site_b, "");
    links_[{a, b}] = links_[{b, a}] = kind_of(link_kinds, std::pair(inside, std::move(link)));
  }
}

std::optional<std::vector<int32_t>> OrderClasses::KeyOf(const std::vector<std::string>& order) const {
  std::vector<int32_t> key;
  for (size_t i = 0; i < order.size(); ++i) {
    key.push_back(sites_.at(order[i]));
    for (size_t j = 0; j < i; ++j) {
      const auto link = links_.find({order[j], order[i]});
      if (link == links_.end()) {
        return std::nullopt;
      }
      key.push_back(link->second);
    }
  }
  return key;
}

bool OrderClasses::IsNew(const std::vector<std::string>& order) {
  std::optional<std::vector<int32_t>> key = KeyOf(order);
  return !key.has_value() || known_.try_emplace(*std::move(key), order).second;
}

std::vector<std::string> OrderClasses::FirstLike(const std::vector<std::string>& order) {
  std::optional<std::vector<int32_t>> key = KeyOf(order);
  return key.has_value() ? known_.try_emplace(*std::move(key), order).first->second : order;
}

std::vector<std::vector<std::string>> CandidateSiteOrders(const JobSpec& job, const ClusterSpec& cluster) {
  if (!job.placement.sites.empty()) {
    return OrdersOfGroups(cluster, job.placement.sites);
  }
  std::vector<const SiteSpec*> sites;
  for (const SiteSpec& site : cluster.sites) {
    sites.push_back(&site);
  }
  if (TriesAllOrders(job, cluster)) {
    return OrderedSelections(cluster, sites);
  }
  std::vector<std::vector<std::string>> orders;
  const auto add = [&](std::vector<std::string> order) {
    if (Linked(cluster, order) && std::find(orders.begin(), orders.end(), order) == orders.end()) {
      orders.push_back(std::move(order));
    }
  };
  add(NamesOf(sites));
  for (const SiteSpec* site : sites) {
    add({site->name});
  }
  return orders;
}

bool TriesAllOrders(const JobSpec& job, const ClusterSpec& cluster) {
  std::map<std::string_view, int64_t> groups;
  for (const SiteSpec& site : cluster.sites) {
    ++groups[SiteOfGroup(site.name)];
  }
  return !job.placement.sites.empty() || cluster.sites.size() <= kMaxPermutedSites ||
         (groups.size() <= kMaxPermutedSites && OrderCount(groups) <= kMaxTriedOrders);
}

std::vector<std::vector<std::string>> ShortestWalks(const JobSpec& job, const ClusterSpec& cluster, int64_t count) {
  std::vector<std::string> allowed;
  for (const SiteSpec& site : cluster.sites) {
    const absl::StatusOr<int64_t> slots = StageSlots(job, site);
    if (slots.ok() && *slots > 0) {
      allowed.push_back(site.name);
    }
  }
  std::map<std::string_view, size_t> index;
  std::vector<std::string_view> site_of;
  for (size_t i = 0; i < allowed.size(); ++i) {
    index[allowed[i]] = i;
    site_of.push_back(SiteOfGroup(allowed[i]));
  }
  std::vector<std::vector<int64_t>> latency_ns(allowed.size(), std::vector<int64_t>(allowed.size(), kNoLink));
  for (const LinkSpec& link : cluster.links) {
    const auto a = index.find(link.site_a);
    const auto b = index.find(link.site_b);
    if (a != index.end() && b != index.end()) {
      latency_ns[a->second][b->second] = latency_ns[b->second][a->second] = link.latency_ns;
    }
  }
  std::vector<Walk> walks;
  for (size_t start = 0; start < allowed.size(); ++start) {
    Walk walk = NearestNeighbourWalk(latency_ns, site_of, start, count);
    if (std::ssize(walk.sites) == count) {
      walks.push_back(std::move(walk));
    }
  }
  std::ranges::stable_sort(walks, {}, &Walk::latency_ns);
  std::vector<std::vector<std::string>> orders;
  for (const Walk& walk : walks) {
    std::vector<std::string>& order = orders.emplace_back();
    for (const size_t site : walk.sites) {
      order.push_back(allowed[site]);
    }
  }
  return orders;
}

}  // namespace geopipe
