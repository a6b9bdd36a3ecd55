#include "coordinator/cluster/reported_cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "coordinator/cluster/allocation.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "proto/wire/cluster_wire.h"

namespace geopipe {
namespace {

MeasuredLinks MeasuredOf(const v1::ListLinksResponse& links) {
  MeasuredLinks measured;
  for (const v1::LinkStatus& status : links.links()) {
    if (status.has_measured()) {
      measured.Restore(-status.age_ns(), status.from_site(), status.to_site(), status.measured(),
                       status.source() == "traffic");
    }
  }
  return measured;
}

// Collects nodes as DecideAllocation gives them: by site and by name, with a network where one is declared or was
// measured.
Allocation AllocationOf(const v1::ListSitesResponse& sites, const LinkTable& links, const MeasuredLinks& measured,
                        std::vector<LeftOutNode>& left_out) {
  std::map<std::string, std::map<std::string, AllocatedNode>> in_use;
  for (const v1::SiteStatus& site : sites.sites()) {
    const std::optional<NetworkSpec> network = links.NetworkInside(site.name(), measured);
    for (const v1::NodeStatus& status : site.nodes()) {
      const NodeKey key{site.name(), status.spec().node()};
      if (!status.connected() || site.drained()) {
        left_out.push_back({key, site.drained() ? "its site is drained" : "lost"});
        continue;
      }
      AllocatedNode node{.spec = status.spec(), .devices = {}};
      for (int32_t device = 0; device < node.spec.devices(); ++device) {
        node.devices.push_back(device);
      }
      if (network.has_value() && !node.spec.has_network()) {
        *node.spec.mutable_network() = ToProto(*network);
      }
      in_use[key.site].insert_or_assign(key.node, std::move(node));
    }
  }
  Allocation allocation;
  for (auto& [name, nodes] : in_use) {
    AllocatedSite& site = allocation.sites.emplace_back();
    site.name = name;
    for (auto& [node, allocated] : nodes) {
      site.nodes.push_back(std::move(allocated));
    }
  }
  return allocation;
}

std::map<SitePair, LinkSource> SourcesOf(const LinkTable& links, const MeasuredLinks& measured,
                                         const std::vector<std::string>& sites) {
  std::map<SitePair, LinkSource> sources;
  for (const SitePair& pair : links.Pairs()) {
    if (std::ranges::find(sites, pair.first) == sites.end() || std::ranges::find(sites, pair.second) == sites.end()) {
      continue;
    }
    LinkSource source{.source = IsInside(pair) ? "" : "declared"};
    for (const MeasuredDirection* each :
         {measured.Find(pair.first, pair.second), measured.Find(pair.second, pair.first)}) {
      if (each != nullptr && -each->at_ns >= source.age_ns) {
        source = {.source = each->from_traffic ? "traffic" : "probed", .age_ns = -each->at_ns};
      }
    }
    if (!source.source.empty()) {
      sources[pair] = std::move(source);
    }
  }
  return sources;
}

}  // namespace

absl::StatusOr<ReportedCluster> ClusterAsReported(const v1::ListSitesResponse& sites,
                                                  const v1::ListLinksResponse& links) {
  const LinkTable table = LinkTable::Of(links);
  const MeasuredLinks measured = MeasuredOf(links);
  ReportedCluster reported;
  const Allocation allocation = AllocationOf(sites, table, measured, reported.left_out);
  if (allocation.sites.empty()) {
    return absl::FailedPreconditionError(
        reported.left_out.empty() ? "no agent has registered with the coordinator; start one on each node"
                                  : fmt::format("no node is in use: {}; start their agents, or uncordon their sites",
                                                LeftOutText(reported.left_out)));
  }
  GP_ASSIGN_OR_RETURN(AllocatedCluster allocated, ClusterOf(allocation));
  reported.cluster = std::move(allocated.cluster);
  const std::vector<std::string> names = allocation.site_names();
  reported.cluster.links = LinksOfGroups(reported.cluster.sites, table.SpecsFor(names, measured));
  reported.links = SourcesOf(table, measured, names);
  GP_RETURN_IF_ERROR(ValidateCluster(reported.cluster));
  return reported;
}

std::string LeftOutText(const std::vector<LeftOutNode>& left_out) {
  std::map<std::string, std::vector<NodeKey>> nodes;  // by why
  for (const LeftOutNode& each : left_out) {
    nodes[each.why].push_back(each.node);
  }
  std::vector<std::string> texts;
  for (const auto& [why, keys] : nodes) {
    texts.push_back(fmt::format("{} ({})", DisplayNames(keys), why));
  }
  return fmt::format("{}", fmt::join(texts, " and "));
}

}  // namespace geopipe
