#include "coordinator/spec/topology_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/spec/device_presets.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "proto/manifest/daemon_schema.h"
#include "runtime/base/config/located_error.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

constexpr size_t kMaxSites = 1024;
constexpr size_t kMaxLinks = 4096;
constexpr std::string_view kPresetKey = "preset";

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

// What a device that computes on its own is planned with where its file does not say. Context, kernels and workspaces
// of libraries take about 1 GiB, communicators of NCCL and UCX's buffers about another; blocks of an allocator leave
// some percent unused.
constexpr int64_t kReserveBytes = int64_t{2} << 30;
constexpr int64_t kReservePart = 32;

void FillDefaults(DeviceSpec& device) {
  if (device.kind == kHostDevice) {
    return;
  }
  device.attention = device.attention.value_or(Attention::kBlocked);
  device.roofline = device.roofline.value_or(Roofline::kOperation);
  device.reserve_bytes = device.reserve_bytes.value_or(
      std::min(kReserveBytes + device.memory_bytes / kReservePart, device.memory_bytes / 2));
}

// Writes the figures of a device that is named, as `device: NAME` or by a key `preset` beside what differs from it, in
// the place of the keys that are not given.
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
                          fmt::format("{} is no device that is known by name; use one of {}, or give its figures",
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
  device = std::move(map);
  return absl::OkStatus();
}

absl::Status SpellOutPresets(YamlDocument& document) {
  const auto sites = std::ranges::find(document.root.entries, "sites", &YamlEntry::key);
  for (size_t i = 0; sites != document.root.entries.end() && i < sites->value.items.size(); ++i) {
    for (YamlEntry& entry : sites->value.items[i].entries) {
      if (entry.key == "device") {
        GP_RETURN_IF_ERROR(SpellOutPreset(document, fmt::format("sites[{}].device", i), entry.value));
      }
    }
  }
  return absl::OkStatus();
}

std::string PresetReference() {
  std::string text =
      "\nA device may also be named: `device: h100-sxm-80gb`, or with what differs from it\n"
      "`device: {preset: h100-sxm-80gb, efficiency: 0.6}`:\n";
  for (const DevicePreset& preset : DevicePresets()) {
    text += fmt::format(
        "  {:<15} {:>6}, {:>4.0f} TFLOP/s (dense bf16), memory {:>5.0f} GB/s, node {:>3.0f} GB/s each way\n",
        preset.name, fmt::format("{} GB", preset.memory_bytes / 1'000'000'000), preset.peak_flops / 1e12,
        preset.memory_bandwidth_bytes_per_s / 1e9, preset.intra_node_bandwidth_bytes_per_s / 1e9);
    text += fmt::format("  {:<15} {}\n", "", preset.source);
  }
  return text;
}

Schema<ClusterSpec> TopologySchema() {
  using L = LinkSpec;
  return Schema<ClusterSpec>()
      .List("sites",
            Schema<SiteSpec>()
                .Key("name", StringValue(), &SiteSpec::name, "As jobs and links call it.", Need::kRequired)
                .Key("nodes", IntegerValue(), &SiteSpec::nodes, "Machines of the site.")
                .Key("devices_per_node", IntegerValue(), &SiteSpec::devices_per_node, "Devices of each.")
                .Map("device", DeviceSchema(), &SiteSpec::device, "All devices of a site are alike.", Need::kRequired)
                .Map("network", NetworkSchema(), &SiteSpec::network,
                     "The fabric between nodes. None: replicas of a stage share a node."),
            &ClusterSpec::sites, "Datacenters.", Need::kRequired)
      .List("links",
            Schema<L>()
                .Key<std::pair<std::string, std::string>>(
                    "between", BetweenValue(), [](const L& link) { return std::pair(link.site_a, link.site_b); },
                    [](L* link, std::pair<std::string, std::string> sites) {
                      std::tie(link->site_a, link->site_b) = std::move(sites);
                    },
                    "The two sites it joins.", Need::kRequired)
                .Key("latency", DurationValue(), &L::latency_ns, "One way.", Need::kRequired)
                .Key("bandwidth", BandwidthValue(), &L::bandwidth_bytes_per_s, "Per direction, like 400Gbps.",
                     Need::kRequired),
            &ClusterSpec::links, "Links between sites, full duplex.");
}

// Validates the cluster as it grows by one site or link at a time, so that the first mistake is found at its own place.
absl::Status ValidateInPlace(const YamlDocument& document, const ClusterSpec& cluster) {
  if (cluster.sites.size() > kMaxSites || cluster.links.size() > kMaxLinks) {
    return document.Error(document.root.mark, "",
                          fmt::format("{} sites and {} links; at most {} and {} are taken", cluster.sites.size(),
                                      cluster.links.size(), kMaxSites, kMaxLinks));
  }
  ClusterSpec grown;
  for (size_t i = 0; i < cluster.sites.size(); ++i) {
    grown.sites.push_back(cluster.sites[i]);
    GP_RETURN_IF_ERROR(AttributeTo(document, fmt::format("sites[{}]", i), ValidateCluster(grown)));
  }
  for (size_t i = 0; i < cluster.links.size(); ++i) {
    grown.links.push_back(cluster.links[i]);
    GP_RETURN_IF_ERROR(AttributeTo(document, fmt::format("links[{}]", i), ValidateCluster(grown)));
  }
  return AttributeTo(document, "sites", ValidateCluster(cluster));
}

}  // namespace

absl::StatusOr<ClusterSpec> ParseTopologyFile(std::string_view text, std::string_view file, DeviceFigures figures) {
  GP_ASSIGN_OR_RETURN(YamlDocument document, ParseYaml(text, file));
  GP_RETURN_IF_ERROR(SpellOutPresets(document));
  GP_ASSIGN_OR_RETURN(ClusterSpec cluster, TopologySchema().Read(document));
  for (SiteSpec& site : cluster.sites) {
    FillDefaults(site.device);
  }
  GP_RETURN_IF_ERROR(ValidateInPlace(document, cluster));
  for (size_t i = 0; figures == DeviceFigures::kNeeded && i < cluster.sites.size(); ++i) {
    const DeviceSpec& device = cluster.sites[i].device;
    if (device.peak_flops == 0 || device.memory_bandwidth_bytes_per_s == 0) {
      const bool no_flops = device.peak_flops == 0;
      return document.Error(fmt::format("sites[{}].device", i),
                            fmt::format("{} is not given, and no profile says what the model costs here; give it, like "
                                        "{}, or a profile (--profile)",
                                        no_flops ? "peak_flops" : "memory_bandwidth", no_flops ? "312e12" : "1.6TB/s"));
    }
  }
  return cluster;
}

absl::StatusOr<ClusterSpec> ReadTopologyFile(const std::filesystem::path& path, DeviceFigures figures) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxYamlBytes));
  return ParseTopologyFile(text, path.string(), figures);
}

std::string ExplainTopology() {
  return "A topology file: the cluster, for planning with no server.\n\n" + TopologySchema().Reference() +
         PresetReference();
}

}  // namespace geopipe
