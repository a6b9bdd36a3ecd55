#include "coordinator/cli/asked_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "coordinator/cli/verb.h"
#include "coordinator/spec/topology_writer.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"

namespace geopipe {
namespace {

std::string RemarkOf(const LinkSource& source) {
  return source.source == "declared"
             ? "as agents declare it, not measured yet"
             : fmt::format("{} {} ago", source.source == "probed" ? "probed" : "measured from traffic",
                           HumanAge(source.age_ns));
}

// A device that lacks what the model's costs are computed from; null: none does.
const SiteSpec* Unspecified(const ClusterSpec& cluster) {
  const auto found = std::ranges::find_if(cluster.sites, [](const SiteSpec& site) {
    return site.device.peak_flops == 0 || site.device.memory_bandwidth_bytes_per_s == 0;
  });
  return found == cluster.sites.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<ReportedCluster> AskForCluster(ControlClient& client, const std::string& site) {
  GP_ASSIGN_OR_RETURN(v1::ListSitesResponse sites, client.ListSites());
  GP_ASSIGN_OR_RETURN(const v1::ListLinksResponse links, client.ListLinks());
  if (!site.empty()) {
    auto& all = *sites.mutable_sites();
    all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& each) { return each.name() != site; }), all.end());
    if (all.empty()) {
      return OrFailed(
          absl::NotFoundError(fmt::format("there are no sites of '{}'; `geopipectl get sites` lists all", site)));
    }
  }
  return OrFailed(ClusterAsReported(sites, links));
}

std::string TopologyText(const ReportedCluster& reported, std::string_view server) {
  TopologyRemarks remarks;
  remarks.head.push_back(
      fmt::format("The federation of the coordinator at {}: what its agents declare and probes of "
                  "its links measured.",
                  server));
  if (!reported.left_out.empty()) {
    remarks.head.push_back(fmt::format("Left out: {}.", LeftOutText(reported.left_out)));
  }
  for (const auto& [pair, source] : reported.links) {
    if (IsInside(pair)) {
      remarks.networks[pair.first] = RemarkOf(source);
    } else {
      remarks.links[pair] = RemarkOf(source);
    }
  }
  return WriteTopology(reported.cluster, remarks);
}

absl::StatusOr<ClusterSpec> ClusterOfSites(ControlClient& client, DeviceFigures figures) {
  GP_ASSIGN_OR_RETURN(ReportedCluster reported, AskForCluster(client));
  if (!reported.left_out.empty()) {
    PrintErr("note: planned without {}\n", LeftOutText(reported.left_out));
  }
  const SiteSpec* unspecified = figures == DeviceFigures::kNeeded ? Unspecified(reported.cluster) : nullptr;
  if (unspecified != nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("site {}: its agents do not say the {} of their devices, and no profile says what the model costs "
                    "there; give it under `devices` in their configuration, add --profile, or plan with --topology for "
                    "the file that `geopipectl get sites -o topology` writes, completed",
                    unspecified->name, unspecified->device.peak_flops == 0 ? "peak_flops" : "memory_bandwidth"));
  }
  return std::move(reported.cluster);
}

}  // namespace geopipe
