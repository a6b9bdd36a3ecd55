#include "coordinator/cli/reported_cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "coordinator/core/cluster/allocation.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "proto/wire/cluster_wire.h"

namespace geopipe {
namespace {

using Statuses = std::map<SitePair, const v1::LinkStatus*>;  // by where it leads from and to

const v1::LinkStatus* Find(const Statuses& statuses, const std::string& from, const std::string& to) {
  const auto found = statuses.find({from, to});
  return found == statuses.end() ? nullptr : found->second;
}

const v1::LinkMeasurement* MeasurementOf(const v1::LinkStatus* status) {
  return status != nullptr && status->has_measured() ? &status->measured() : nullptr;
}

// Collects nodes as DecideAllocation gives them: by site and by name, with a network where one is declared or was
// measured.
Allocation AllocationOf(const v1::ListSitesResponse& sites, const Statuses& statuses,
                        std::vector<LeftOutNode>& left_out) {
  std::map<std::string, std::map<std::string, AllocatedNode>> in_use;
  for (const v1::SiteStatus& site : sites.sites()) {
    const v1::LinkMeasurement* inside = MeasurementOf(Find(statuses, site.name(), site.name()));
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
      const std::optional<NetworkSpec> network =
          inside == nullptr || node.spec.has_network() ? std::nullopt : PlannedNetwork(*inside);
      if (network.has_value()) {
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

LinkSource SourceOf(const v1::LinkStatus* there, const v1::LinkStatus* back) {
  LinkSource source{.source = "declared"};
  for (const v1::LinkStatus* status : {there, back}) {
    if (MeasurementOf(status) != nullptr && (source.source == "declared" || status->age_ns() > source.age_ns)) {
      source = {.source = status->source(), .age_ns = status->age_ns()};
    }
  }
  return source;
}

std::vector<LinkSpec> LinksBetween(const std::vector<std::string>& sites, const Statuses& statuses,
                                   std::map<SitePair, LinkSource>& sources) {
  std::vector<LinkSpec> links;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (const v1::LinkStatus* inside = Find(statuses, sites[i], sites[i]); MeasurementOf(inside) != nullptr) {
      sources[InsideOf(sites[i])] = SourceOf(inside, nullptr);
    }
    for (size_t j = i + 1; j < sites.size(); ++j) {
      const v1::LinkStatus* there = Find(statuses, sites[i], sites[j]);
      const v1::LinkStatus* back = Find(statuses, sites[j], sites[i]);
      const v1::LinkStatus* any = there != nullptr ? there : back;
      if (any == nullptr) {
        continue;
      }
      const MergedLink declared{.latency_ns = any->declared_latency_ns(),
                                .bandwidth_bytes_per_s = any->declared_bandwidth_bytes_per_s(),
                                .shaped_by = {}};
      links.push_back(PlannedLink({sites[i], sites[j]}, declared, MeasurementOf(there), MeasurementOf(back)));
      sources[PairOf(sites[i], sites[j])] = SourceOf(there, back);
    }
  }
  return links;
}

}  // namespace

absl::StatusOr<ReportedCluster> ClusterAsReported(const v1::ListSitesResponse& sites,
                                                  const v1::ListLinksResponse& links) {
  Statuses statuses;
  for (const v1::LinkStatus& status : links.links()) {
    statuses[{status.from_site(), status.to_site()}] = &status;
  }
  ReportedCluster reported;
  const Allocation allocation = AllocationOf(sites, statuses, reported.left_out);
  if (allocation.sites.empty()) {
    return absl::FailedPreconditionError(
        reported.left_out.empty() ? "no agent has registered with the coordinator; start one on each node"
                                  : fmt::format("no node is in use: {}; start their agents, or uncordon their sites",
                                                LeftOutText(reported.left_out)));
  }
  GP_ASSIGN_OR_RETURN(AllocatedCluster allocated, ClusterOf(allocation));
  reported.cluster = std::move(allocated.cluster);
  reported.cluster.links =
      LinksOfGroups(reported.cluster.sites, LinksBetween(allocation.site_names(), statuses, reported.links));
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
