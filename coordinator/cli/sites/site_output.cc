#include "coordinator/cli/sites/site_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "proto/wire/schedule_wire.h"

namespace geopipe {
namespace {

// The status of the network inside the site; nullptr: an agent declares it, or there are no two nodes.
const v1::LinkStatus* Inside(const v1::ListLinksResponse& links, const std::string& site) {
  const auto found = std::ranges::find_if(
      links.links(), [&](const v1::LinkStatus& link) { return link.from_site() == site && link.to_site() == site; });
  return found == links.links().end() ? nullptr : &*found;
}

std::string_view PerName(v1::NetworkShare per) { return per == v1::NETWORK_SHARE_DEVICE ? "device" : "node"; }

std::string NetworkText(const v1::NodeSpec& node, const v1::ListLinksResponse& links) {
  const v1::LinkStatus* inside = Inside(links, node.site());
  if (node.has_network()) {
    const v1::NetworkSpec& network = node.network();
    return fmt::format("{}, {} per {}, declared", HumanBandwidth(network.bandwidth_bytes_per_s()),
                       HumanDuration(network.latency_ns()), PerName(network.per()));
  }
  if (inside != nullptr && inside->has_measured()) {
    return fmt::format("{}, {} per node, measured {} ago", HumanBandwidth(inside->bandwidth_bytes_per_s()),
                       HumanDuration(inside->latency_ns()), HumanAge(inside->age_ns()));
  }
  return "-";
}

Json NetworkJson(const v1::NodeSpec& node, const v1::ListLinksResponse& links) {
  const v1::LinkStatus* inside = Inside(links, node.site());
  if (node.has_network()) {
    const v1::NetworkSpec& network = node.network();
    return {{"bandwidth_Bps", network.bandwidth_bytes_per_s()},
            {"latency_s", Seconds(network.latency_ns())},
            {"per", PerName(network.per())},
            {"source", "declared"},
            {"age_s", nullptr}};
  }
  if (inside != nullptr && inside->has_measured()) {
    return {{"bandwidth_Bps", inside->bandwidth_bytes_per_s()},
            {"latency_s", Seconds(inside->latency_ns())},
            {"per", PerName(v1::NETWORK_SHARE_NODE)},
            {"source", "measured"},
            {"age_s", Seconds(inside->age_ns())}};
  }
  return nullptr;
}

// The reasons by backend.
Json RefusedJson(const v1::NodeSpec& node) {
  Json reasons = Json::object();
  for (const v1::RefusedBackend& refused : node.refused_backends()) {
    if (const absl::StatusOr<BackendKind> kind = FromProto(refused.backend()); kind.ok()) {
      reasons[std::string(BackendKindName(*kind))] = refused.reason();
    }
  }
  return reasons;
}

Json StraysJson(const v1::NodeStatus& node) {
  Json strays = Json::array();
  for (const v1::StrayWorker& stray : node.strays()) {
    strays.push_back({{"job", stray.job()},
                      {"device", stray.device()},
                      {"age_s", Seconds(stray.age_ns())},
                      {"stopped_in_s", Seconds(stray.stopped_in_ns())}});
  }
  return strays;
}

}  // namespace

Table SiteTableOf(const v1::ListSitesResponse& sites, const v1::ListLinksResponse& links, bool wide) {
  std::vector<std::string> headings{"SITE", "NODE", "STATE", "DEVICES", "KIND", "MEMORY", "NETWORK", "WORKERS"};
  if (wide) {
    headings.insert(headings.end(), {"VERSION", "HEARTBEAT"});
  }
  Table table(headings);
  for (const v1::SiteStatus& site : sites.sites()) {
    for (const v1::NodeStatus& node : site.nodes()) {
      const v1::NodeSpec& spec = node.spec();
      std::vector<std::string> row{
          site.name(),
          spec.node(),
          fmt::format("{}{}{}{}", node.connected() ? "connected" : "lost", node.trouble().empty() ? "" : ", unfit",
                      node.leaving() ? ", leaving" : "", site.drained() ? ", drained" : ""),
          fmt::format("{}", spec.devices()),
          spec.device().kind(),
          HumanBytes(spec.device().memory_bytes()),
          NetworkText(spec, links),
          node.workers_summary().empty() ? "-" : node.workers_summary()};
      if (wide) {
        row.insert(row.end(), {node.version(), HumanAge(node.last_heartbeat_age_ns()) + " ago"});
      }
      table.AddRow(std::move(row));
    }
  }
  return table;
}

std::string SiteTroubles(const v1::ListSitesResponse& sites) {
  std::string lines;
  for (const v1::SiteStatus& site : sites.sites()) {
    for (const v1::NodeStatus& node : site.nodes()) {
      if (!node.trouble().empty()) {
        lines += fmt::format("warning: node {}/{} has been unfit for {} and is tried again every 10 s: {}\n",
                             site.name(), node.spec().node(), HumanAge(node.trouble_ns()), node.trouble());
      }
      if (node.leaving()) {
        lines +=
            fmt::format("warning: node {}/{} goes down: its keeper was told to end, and ends the workers within {}\n",
                        site.name(), node.spec().node(), HumanAge(node.leaves_within_ns()));
      }
      for (const v1::StrayWorker& stray : node.strays()) {
        lines += fmt::format(
            "warning: device {} of node {}/{} has a worker of job {} whose run the coordinator does not know; it is "
            "left alone, and stopped in {} or by 'geopipectl stop-stray {}/{}'\n",
            stray.device(), site.name(), node.spec().node(), stray.job(), HumanAge(stray.stopped_in_ns()), site.name(),
            node.spec().node());
      }
    }
  }
  for (const v1::RefusedAgent& refused : sites.refused()) {
    lines += fmt::format("warning: agent {}/{} was refused {} ago: {}\n", refused.site(), refused.node(),
                         HumanAge(refused.age_ns()), refused.why());
  }
  return lines;
}

Json SitesToJson(const v1::ListSitesResponse& sites, const v1::ListLinksResponse& links) {
  Json json = Json::array();
  for (const v1::SiteStatus& site : sites.sites()) {
    for (const v1::NodeStatus& node : site.nodes()) {
      json.push_back({{"site", site.name()},
                      {"node", node.spec().node()},
                      {"connected", node.connected()},
                      {"drained", site.drained()},
                      {"trouble", node.trouble().empty() ? Json() : Json(node.trouble())},
                      {"leaves_within_s", node.leaving() ? Json(Seconds(node.leaves_within_ns())) : Json()},
                      {"trouble_s", node.trouble().empty() ? Json() : Json(Seconds(node.trouble_ns()))},
                      {"devices", node.spec().devices()},
                      {"kind", node.spec().device().kind()},
                      {"memory_bytes", node.spec().device().memory_bytes()},
                      {"network", NetworkJson(node.spec(), links)},
                      {"refused_backends", RefusedJson(node.spec())},
                      {"workers", node.workers_summary()},
                      {"strays", StraysJson(node)},
                      {"version", node.version()},
                      {"last_heartbeat_age_s", Seconds(node.last_heartbeat_age_ns())}});
    }
  }
  return json;
}

}  // namespace geopipe
