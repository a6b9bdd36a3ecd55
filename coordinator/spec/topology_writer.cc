#include "coordinator/spec/topology_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include "optimizer/base/quantities.h"
#include "runtime/base/config/schema_values.h"
#include "runtime/manifest/daemon_schema.h"

namespace geopipe {
namespace {

// Greatest number of sites whose pairs without a link are named one by one.
constexpr size_t kMaxSitesWithPairs = 8;

std::string Comment(std::string_view margin, std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return fmt::format("{}# {}\n", margin, line);
}

// Example of a figure that is not known, as a person would write it.
std::string_view ExampleOf(std::string_view key) {
  return key == "peak_flops"         ? "989e12"
         : key == "memory_bandwidth" ? "3.35TB/s"
         : key == "host_bandwidth"   ? "64GB/s"
                                     : "450GB/s";
}

std::string_view NeededFor(std::string_view key) {
  return key == "peak_flops" || key == "memory_bandwidth" ? "needed where there is no --profile"
         : key == "host_bandwidth"                        ? "needed for parallelism.offload"
                                                          : "needed for tensor and data above 1";
}

std::string DeviceText(std::string_view margin, DeviceSpec device) {
  if (device.kind != kHostDevice) {  // to whose kind a file gives the processor's defaults
    device.attention = device.attention.value_or(Attention::kBlocked);
    device.roofline = device.roofline.value_or(Roofline::kBlock);
    device.reserve_bytes = device.reserve_bytes.value_or(0);
  }
  std::string text = fmt::format("{}device:\n", margin);
  for (const std::string& key : DeviceSchema().KeyPaths()) {
    const std::string value = key == "peak_flops" && device.peak_flops == 0 ? "" : DeviceSchema().Show(key, device);
    text += value.empty() ? Comment(fmt::format("{}  ", margin),
                                    fmt::format("{}: {}   not known; {}", key, ExampleOf(key), NeededFor(key)))
                          : fmt::format("{}  {}: {}\n", margin, key, value);
  }
  return text;
}

std::string NodesText(std::string_view margin, const SiteSpec& site) {
  const std::string host = site.host_memory_bytes == 0
                               ? ""
                               : fmt::format("{}host_memory: {}\n", margin, FormatBytes(site.host_memory_bytes));
  return fmt::format("{0}nodes: {1}\n{0}devices_per_node: {2}\n{3}{4}", margin, site.nodes, site.devices_per_node, host,
                     DeviceText(margin, site.device));
}

std::string NetworkText(const std::vector<const SiteSpec*>& groups, const std::string* remark) {
  const NetworkSpec& network = groups.front()->network;
  if (network.given()) {
    std::string text = remark == nullptr ? "" : Comment("    ", *remark);
    text += "    network:\n";
    for (const std::string& key : NetworkSchema().KeyPaths()) {
      text += fmt::format("      {}: {}\n", key, NetworkSchema().Show(key, network));
    }
    return text;
  }
  return groups.size() == 1 && groups.front()->nodes == 1
             ? ""
             : Comment("    ",
                       "network: {bandwidth: 400Gbps, latency: 5us, per: device}   not known; without it the replicas "
                       "of a stage share a node");
}

std::string SiteText(const std::string& name, const std::vector<const SiteSpec*>& groups, const std::string* remark) {
  std::string text = fmt::format("  - name: {}\n", YamlText(name));
  if (groups.size() == 1) {
    return text + NodesText("    ", *groups.front()) + NetworkText(groups, remark);
  }
  text += NetworkText(groups, remark) + "    node_groups:\n";
  for (const SiteSpec* group : groups) {
    text += fmt::format("      - name: {}\n{}", YamlText(std::string_view(group->name).substr(name.size() + 1)),
                        NodesText("        ", *group));
  }
  return text;
}

std::string LinksText(const ClusterSpec& cluster, const TopologyRemarks& remarks) {
  std::string text;
  std::set<std::pair<std::string_view, std::string_view>> known;
  for (const LinkSpec& link : cluster.links) {
    const std::string a(SiteOfGroup(link.site_a));
    const std::string b(SiteOfGroup(link.site_b));
    const std::pair<std::string_view, std::string_view> pair =
        std::minmax(SiteOfGroup(link.site_a), SiteOfGroup(link.site_b));
    if (link.inside() || !known.insert(pair).second) {
      continue;
    }
    const auto remark = remarks.links.find({std::string(pair.first), std::string(pair.second)});
    text += remark == remarks.links.end() ? "" : Comment("  ", remark->second);
    text += fmt::format("  - between: [{}, {}]\n    latency: {}\n    bandwidth: {}\n", YamlText(a), YamlText(b),
                        FormatDuration(link.latency_ns), FormatBandwidth(link.bandwidth_bytes_per_s));
  }
  std::string missing;
  const std::vector<std::string> sites = cluster.SiteNames();
  for (size_t i = 0; i < sites.size() && sites.size() <= kMaxSitesWithPairs; ++i) {
    for (size_t j = i + 1; j < sites.size(); ++j) {
      if (!known.contains(std::minmax<std::string_view>(sites[i], sites[j]))) {
        missing += Comment("  ", fmt::format("- {{between: [{}, {}], latency: 20ms, bandwidth: 10Gbps}}   not known",
                                             YamlText(sites[i]), YamlText(sites[j])));
      }
    }
  }
  if (text.empty()) {
    return missing.empty() ? "" : Comment("", "links:") + missing;
  }
  return "links:\n" + text + missing;
}

}  // namespace

std::string WriteTopology(const ClusterSpec& cluster, const TopologyRemarks& remarks) {
  std::string text;
  for (const std::string& line : remarks.head) {
    text += Comment("", line);
  }
  text += "sites:\n";
  for (const std::string& name : cluster.SiteNames()) {
    const auto remark = remarks.networks.find(name);
    text += SiteText(name, cluster.GroupsOf(name), remark == remarks.networks.end() ? nullptr : &remark->second);
  }
  return text + LinksText(cluster, remarks);
}

}  // namespace geopipe
