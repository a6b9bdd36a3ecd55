#include "coordinator/spec/topology_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "coordinator/spec/device_presets.h"
#include "coordinator/spec/topology_schema.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/files.h"
#include "runtime/manifest/daemon_schema.h"

namespace geopipe {
namespace {

constexpr size_t kMaxSites = 1024;
constexpr size_t kMaxLinks = 4096;
constexpr std::string_view kPresetKey = "preset";
constexpr std::string_view kDeviceKey = "device";
constexpr std::string_view kGroupsKey = "node_groups";

// Nodes that are alike.
struct Nodes {
  int64_t count = 1;
  int64_t devices_per_node = 1;
  int64_t host_memory_bytes = 0;
  DeviceSpec device;
};

struct NodeGroup {
  std::string name;
  Nodes nodes;
};

struct TopologySite {
  std::string name;
  Nodes nodes;
  NetworkSpec network;
  std::vector<NodeGroup> groups;
};

struct Topology {
  std::vector<TopologySite> sites;
  std::vector<LinkSpec> links;
};

ValueType<std::pair<std::string, std::string>> BetweenValue() {
  ValueType<std::pair<std::string, std::string>> type;
  type.name = "list of 2 sites";
  type.read = [](const YamlNode& node) -> absl::StatusOr<std::pair<std::string, std::string>> {
    GP_ASSIGN_OR_RETURN(std::vector<std::string> sites, ListValue(StringValue()).read(node));
    if (sites.size() != 2) {
      return absl::InvalidArgumentError(fmt::format("names {} sites; name two, like [north, east]", sites.size()));
    }
    return std::pair(std::move(sites[0]), std::move(sites[1]));
  };
  type.show = [](const std::pair<std::string, std::string>&) { return std::string(); };
  return type;
}

// Writes the figures of a device preset (`device: NAME`, or a key `preset` beside the figures that differ) into the
// keys that are not given.
absl::Status SpellOutPreset(const YamlDocument& document, const std::string& path, YamlNode& device) {
  const YamlEntry* entry = device.Find(kPresetKey);
  if (!device.is_scalar() && entry == nullptr) {
    return absl::OkStatus();
  }
  const YamlNode name = entry == nullptr ? device : entry->value;
  const std::string name_path = entry == nullptr ? path : fmt::format("{}.{}", path, kPresetKey);
  const DevicePreset* preset = name.is_scalar() ? FindDevicePreset(name.scalar) : nullptr;
  if (preset == nullptr) {
    return document.Error(name.mark, name_path,
                          fmt::format("{} is not a known device; use one of {}, or give its figures",
                                      name.Description(), DevicePresetNames()));
  }
  YamlNode map{.kind = YamlNode::Kind::kMap, .scalar = {}, .mark = device.mark, .items = {}, .entries = device.entries};
  std::erase_if(map.entries, [](const YamlEntry& each) { return each.key == kPresetKey; });
  const auto add = [&](const std::string& key, std::string text) {
    if (map.Find(key) == nullptr) {
      map.entries.push_back({key,
                             name.mark,
                             {.kind = YamlNode::Kind::kScalar,
                              .scalar = std::move(text),
                              .mark = name.mark,
                              .items = {},
                              .entries = {}}});
    }
  };
  add("kind", std::string(preset->name));
  add("memory", FormatBytes(preset->memory_bytes));
  add("peak_flops", fmt::format("{}", preset->peak_flops));
  add("memory_bandwidth", FormatBandwidth(preset->memory_bandwidth_bytes_per_s));
  add("intra_node_bandwidth", FormatBandwidth(preset->intra_node_bandwidth_bytes_per_s));
  add("host_bandwidth", FormatBandwidth(preset->host_bandwidth_bytes_per_s));
  if (preset->attention_efficiency > 0) {
    add("attention_efficiency", fmt::format("{}", preset->attention_efficiency));
  }
  device = std::move(map);
  return absl::OkStatus();
}

// Spells out presets of a site or one of its groups.
absl::Status SpellOutPresetAt(const YamlDocument& document, const std::string& path, YamlNode& nodes) {
  for (YamlEntry& entry : nodes.entries) {
    if (entry.key == kDeviceKey) {
      GP_RETURN_IF_ERROR(SpellOutPreset(document, fmt::format("{}.{}", path, kDeviceKey), entry.value));
    }
    for (size_t i = 0; entry.key == kGroupsKey && i < entry.value.items.size(); ++i) {
      GP_RETURN_IF_ERROR(
          SpellOutPresetAt(document, fmt::format("{}.{}[{}]", path, kGroupsKey, i), entry.value.items[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status SpellOutPresets(YamlDocument& document) {
  const auto sites = std::ranges::find(document.root.entries, "sites", &YamlEntry::key);
  for (size_t i = 0; sites != document.root.entries.end() && i < sites->value.items.size(); ++i) {
    GP_RETURN_IF_ERROR(SpellOutPresetAt(document, fmt::format("sites[{}]", i), sites->value.items[i]));
  }
  return absl::OkStatus();
}

std::string PresetReference() {
  std::string text =
      "\nA device may also be named: `device: h100-sxm-80gb`, or with what differs from it\n"
      "`device: {preset: h100-sxm-80gb, efficiency: 0.6}`:\n";
  for (const DevicePreset& preset : DevicePresets()) {
    text += fmt::format(
        "  {:<15} {:>6}, {:>4.0f} TFLOP/s (dense bf16), memory {:>5.0f} GB/s, each way node {:>3.0f} and host {:>2.0f} "
        "GB/s{}\n",
        preset.name, fmt::format("{} GB", preset.memory_bytes / 1'000'000'000), preset.peak_flops / 1e12,
        preset.memory_bandwidth_bytes_per_s / 1e9, preset.intra_node_bandwidth_bytes_per_s / 1e9,
        preset.host_bandwidth_bytes_per_s / 1e9,
        preset.attention_efficiency > 0 ? fmt::format(", attention_efficiency {}", preset.attention_efficiency) : "");
    text += fmt::format("  {:<15} {}\n", "", preset.source);
  }
  return text;
}

Schema<Nodes> NodesKeys(Need need) {
  return NodesSchema(&Nodes::count, &Nodes::devices_per_node, &Nodes::host_memory_bytes, &Nodes::device, need);
}

Schema<Topology> TopologySchema() {
  using L = LinkSpec;
  using S = TopologySite;
  Schema<NodeGroup> group;
  group.Key("name", StringValue(), &NodeGroup::name, "Plans say SITE/NAME. Left out: the device's kind.")
      .Embed(NodesKeys(Need::kRequired), &NodeGroup::nodes);
  Schema<S> site;
  site.Key("name", StringValue(), &S::name, "As jobs and links call it.", Need::kRequired)
      .Embed(NodesKeys(Need::kOptional), &S::nodes)
      .Map("network", NetworkSchema(), &S::network, "The fabric between nodes. None: replicas of a stage share a node.")
      .List(std::string(kGroupsKey), std::move(group), &S::groups,
            "In place of nodes, devices_per_node and device where the nodes of a site differ.");
  return Schema<Topology>()
      .List("sites", std::move(site), &Topology::sites, "Datacenters.", Need::kRequired)
      .List("links",
            WithLinkFigures(Schema<L>().Key<std::pair<std::string, std::string>>(
                "between", BetweenValue(), [](const L& link) { return std::pair(link.site_a, link.site_b); },
                [](L* link, std::pair<std::string, std::string> sites) {
                  std::tie(link->site_a, link->site_b) = std::move(sites);
                },
                "The two sites it joins.", Need::kRequired)),
            &Topology::links, "Links between sites, full duplex.");
}
std::vector<std::string> GroupNames(const TopologySite& site) {
  std::vector<std::string> names;
  for (const NodeGroup& group : site.groups) {
    names.push_back(group.name.empty() ? GroupName(group.nodes.device.kind, names) : group.name);
  }
  return names;
}

// A SiteSpec and its place in the file.
struct SitePlace {
  std::string path;  // "sites[1].node_groups[0]"
  SiteSpec site;
};

// A site, or each of its groups.
absl::StatusOr<std::vector<SitePlace>> PlacesOf(const YamlDocument& document, const std::string& path,
                                                const TopologySite& site) {
  const auto spec = [&](std::string name, const Nodes& nodes) {
    SiteSpec made{.name = std::move(name),
                  .nodes = nodes.count,
                  .devices_per_node = nodes.devices_per_node,
                  .device = nodes.device,
                  .network = site.network,
                  .host_memory_bytes = nodes.host_memory_bytes};
    FillDeviceDefaults(made.device);
    return made;
  };
  if (!IsSiteName(site.name)) {
    return AttributeTo(document, path, SiteNameError(site.name));
  }
  const bool has_device = site.nodes.device.memory_bytes > 0;
  if (has_device != site.groups.empty()) {
    return document.Error(path, has_device ? "has a device and node_groups; give one of them"
                                           : "has no device; give it, or node_groups where its nodes differ");
  }
  if (has_device) {
    return std::vector<SitePlace>{{path, spec(site.name, site.nodes)}};
  }
  if (site.nodes.count != Nodes().count || site.nodes.devices_per_node != Nodes().devices_per_node) {
    return document.Error(path, "has nodes or devices_per_node as well as node_groups; give them in each group");
  }
  std::vector<SitePlace> places;
  const std::vector<std::string> names = GroupNames(site);
  for (size_t i = 0; i < names.size(); ++i) {
    // A single group is as if it were the site.
    std::string name = names.size() == 1 ? site.name : fmt::format("{}/{}", site.name, names[i]);
    places.push_back({fmt::format("{}.{}[{}]", path, kGroupsKey, i), spec(std::move(name), site.groups[i].nodes)});
  }
  return places;
}

// Returns why the cluster is not valid, at the first site or link with which it is not.
absl::Status FirstMistake(const YamlDocument& document, const std::vector<SitePlace>& places,
                          const std::vector<LinkSpec>& links) {
  ClusterSpec grown;
  for (const SitePlace& place : places) {
    grown.sites.push_back(place.site);
    GP_RETURN_IF_ERROR(AttributeTo(document, place.path, ValidateCluster(grown)));
  }
  for (size_t i = 0; i < links.size(); ++i) {
    grown.links = LinksOfGroups(grown.sites, {links.begin(), links.begin() + static_cast<std::ptrdiff_t>(i) + 1});
    GP_RETURN_IF_ERROR(AttributeTo(document, fmt::format("links[{}]", i), ValidateCluster(grown)));
  }
  return AttributeTo(document, "sites", ValidateCluster(grown));
}

absl::StatusOr<ClusterSpec> ClusterOf(const YamlDocument& document, const Topology& topology, DeviceFigures figures) {
  if (topology.sites.size() > kMaxSites || topology.links.size() > kMaxLinks) {
    return document.Error(document.root.mark, "",
                          fmt::format("{} sites and {} links; at most {} and {} are taken", topology.sites.size(),
                                      topology.links.size(), kMaxSites, kMaxLinks));
  }
  std::vector<SitePlace> places;
  for (size_t i = 0; i < topology.sites.size(); ++i) {
    GP_ASSIGN_OR_RETURN(std::vector<SitePlace> of_site,
                        PlacesOf(document, fmt::format("sites[{}]", i), topology.sites[i]));
    std::ranges::move(of_site, std::back_inserter(places));
  }
  ClusterSpec cluster;
  for (const SitePlace& place : places) {
    cluster.sites.push_back(place.site);
  }
  cluster.links = LinksOfGroups(cluster.sites, topology.links);
  if (!ValidateCluster(cluster).ok()) {
    return FirstMistake(document, places, topology.links);
  }
  for (const SitePlace& place : places) {
    const DeviceSpec& device = place.site.device;
    if (figures == DeviceFigures::kNeeded && (device.peak_flops == 0 || device.memory_bandwidth_bytes_per_s == 0)) {
      const bool no_flops = device.peak_flops == 0;
      return document.Error(fmt::format("{}.{}", place.path, kDeviceKey),
                            fmt::format("{} is not given, and no profile says what the model costs here; give it, like "
                                        "{}, or a profile (--profile)",
                                        no_flops ? "peak_flops" : "memory_bandwidth", no_flops ? "312e12" : "1.6TB/s"));
    }
  }
  return cluster;
}

}  // namespace

absl::StatusOr<DeviceSpec> ParseDevice(std::string_view text, std::string_view source) {
  GP_ASSIGN_OR_RETURN(YamlDocument document, ParseYaml(text, source));
  GP_RETURN_IF_ERROR(SpellOutPreset(document, std::string(kDeviceKey), document.root));
  GP_ASSIGN_OR_RETURN(DeviceSpec device, DeviceSchema().Read(document));
  FillDeviceDefaults(device);
  return device;
}

absl::StatusOr<ClusterSpec> ParseTopologyFile(std::string_view text, std::string_view file, DeviceFigures figures) {
  GP_ASSIGN_OR_RETURN(YamlDocument document, ParseYaml(text, file));
  GP_RETURN_IF_ERROR(SpellOutPresets(document));
  GP_ASSIGN_OR_RETURN(const Topology topology, TopologySchema().Read(document));
  return ClusterOf(document, topology, figures);
}

absl::StatusOr<ClusterSpec> ReadTopologyFile(const std::filesystem::path& path, DeviceFigures figures) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseTopologyFile(text, path.string(), figures);
}

FileReference ExplainTopology() {
  return {"A topology file: the cluster, for planning with no server.", TopologySchema().Rows(), PresetReference()};
}

}  // namespace geopipe
