#include "optimizer/model/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxNodes = 1 << 20;
constexpr int64_t kMaxDevicesPerNode = 1024;
// Reserve of a device that computes on its own, where none is given. Context and kernels of libraries take about 1 GiB,
// communicators of NCCL and UCX's buffers about another; blocks of an allocator leave some percent unused.
constexpr int64_t kReserveBytes = int64_t{2} << 30;
constexpr int64_t kReservePart = 32;
constexpr int64_t kMaxLatencyNs = 60'000'000'000;  // a link slower than a minute one way is a mistake in the file

absl::Status CheckFigure(std::string_view site, std::string_view key, double value) {
  if (std::isfinite(value) && value >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("site \"{}\": device.{} is {}; it must be finite and not negative", site, key, value));
}

bool IsGroupName(std::string_view name) {
  const std::string_view site = SiteOfGroup(name);
  return IsSiteName(site) && (site.size() == name.size() || IsSiteName(name.substr(site.size() + 1)));
}

absl::Status ValidateSite(const SiteSpec& site) {
  if (!IsGroupName(site.name)) {
    return SiteNameError(site.name);
  }
  if (site.nodes < 1 || site.nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": nodes is {}; it must be from 1 to {}", site.name, site.nodes, kMaxNodes));
  }
  if (site.devices_per_node < 1 || site.devices_per_node > kMaxDevicesPerNode) {
    return absl::InvalidArgumentError(fmt::format("site \"{}\": devices_per_node is {}; it must be from 1 to {}",
                                                  site.name, site.devices_per_node, kMaxDevicesPerNode));
  }
  const DeviceSpec& device = site.device;
  if (device.memory_bytes < 1) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": device.memory is {} bytes; it must be positive", site.name, device.memory_bytes));
  }
  const int64_t reserve_bytes = device.reserve_bytes.value_or(0);
  if (reserve_bytes < 0 || reserve_bytes >= device.memory_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("site \"{}\": device.reserve is {} of device.memory {}; it must leave something of it", site.name,
                    HumanBytes(reserve_bytes), HumanBytes(device.memory_bytes)));
  }
  GP_RETURN_IF_ERROR(CheckFigure(site.name, "peak_flops", device.peak_flops));
  GP_RETURN_IF_ERROR(CheckFigure(site.name, "memory_bandwidth", device.memory_bandwidth_bytes_per_s));
  GP_RETURN_IF_ERROR(CheckFigure(site.name, "intra_node_bandwidth", device.intra_node_bandwidth_bytes_per_s));
  GP_RETURN_IF_ERROR(CheckFigure(site.name, "host_bandwidth", device.host_bandwidth_bytes_per_s));
  if (!(device.efficiency > 0 && device.efficiency <= 1)) {
    return absl::InvalidArgumentError(fmt::format(
        "site \"{}\": device.efficiency is {}; it must be above 0 and at most 1", site.name, device.efficiency));
  }
  const double attention = device.attention_efficiency.value_or(1);
  if (!(attention > 0 && attention <= 1)) {
    return absl::InvalidArgumentError(fmt::format(
        "site \"{}\": device.attention_efficiency is {}; it must be above 0 and at most 1", site.name, attention));
  }
  const NetworkSpec& network = site.network;
  // The limit is a link's: the largest message still has a duration in int64_t nanoseconds.
  if (network.given() && !(std::isfinite(network.bandwidth_bytes_per_s) && network.bandwidth_bytes_per_s >= 1)) {
    return absl::InvalidArgumentError(fmt::format("site \"{}\": network.bandwidth is {}; it must be at least 8bps",
                                                  site.name, FormatBandwidth(network.bandwidth_bytes_per_s)));
  }
  if (network.latency_ns < 0 || network.latency_ns > kMaxLatencyNs) {
    return absl::InvalidArgumentError(fmt::format("site \"{}\": network.latency is {}; it must be from 0 to {}",
                                                  site.name, FormatDuration(network.latency_ns),
                                                  FormatDuration(kMaxLatencyNs)));
  }
  return absl::OkStatus();
}

absl::Status ValidateLink(const ClusterSpec& cluster, const LinkSpec& link) {
  const std::string name = fmt::format("link between \"{}\" and \"{}\"", link.site_a, link.site_b);
  for (const std::string& site : {link.site_a, link.site_b}) {
    if (cluster.FindSite(site) == nullptr) {
      return absl::InvalidArgumentError(fmt::format("{}: there is no site \"{}\"", name, site));
    }
  }
  if (link.site_a == link.site_b) {
    return absl::InvalidArgumentError(fmt::format("{}: a link joins two different sites", name));
  }
  if (link.latency_ns < 0 || link.latency_ns > kMaxLatencyNs) {
    return absl::InvalidArgumentError(fmt::format("{}: latency is {}; it must be from 0 to {}", name,
                                                  FormatDuration(link.latency_ns), FormatDuration(kMaxLatencyNs)));
  }
  if (link.inside() && link.bandwidth_bytes_per_s == 0) {
    return absl::OkStatus();
  }
  // The limit of one byte per second gives the largest message a duration that still fits in int64_t nanoseconds.
  if (!(std::isfinite(link.bandwidth_bytes_per_s) && link.bandwidth_bytes_per_s >= 1)) {
    return absl::InvalidArgumentError(fmt::format("{}: bandwidth is {}; it must be finite and at least 8bps", name,
                                                  FormatBandwidth(link.bandwidth_bytes_per_s)));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsSiteName(std::string_view name) {
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !name.empty() && name.size() <= 63 && alphanumeric(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return alphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

absl::Status SiteNameError(std::string_view name) {
  std::string shown(name.substr(0, 80));
  std::ranges::replace_if(
      shown, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
  return absl::InvalidArgumentError(fmt::format("name is \"{}\"; it must be {}", shown, kSiteNameRule));
}

void FillDeviceDefaults(DeviceSpec& device) {
  if (device.kind == kHostDevice) {
    return;
  }
  device.attention = device.attention.value_or(Attention::kBlocked);
  device.roofline = device.roofline.value_or(Roofline::kOperation);
  device.reserve_bytes = device.reserve_bytes.value_or(
      std::min(kReserveBytes + device.memory_bytes / kReservePart, device.memory_bytes / 2));
}

std::string_view SiteOfGroup(std::string_view name) { return name.substr(0, name.find('/')); }

absl::Status ClusterSpec::UnknownSite(std::string_view name) const {
  return absl::InvalidArgumentError(fmt::format(
      "placement.sites names \"{}\", which the topology does not have; it has {}", name, fmt::join(SiteNames(), ", ")));
}

std::vector<const SiteSpec*> ClusterSpec::GroupsOf(std::string_view name) const {
  std::vector<const SiteSpec*> groups;
  for (const SiteSpec& site : sites) {
    if (site.name == name || SiteOfGroup(site.name) == name) {
      groups.push_back(&site);
    }
  }
  return groups;
}

std::vector<std::string> ClusterSpec::SiteNames() const {
  std::vector<std::string> names;
  std::set<std::string_view> known;
  for (const SiteSpec& site : sites) {
    const std::string_view name = SiteOfGroup(site.name);
    if (known.insert(name).second) {
      names.emplace_back(name);
    }
  }
  return names;
}

const SiteSpec* ClusterSpec::FindSite(std::string_view name) const {
  for (const SiteSpec& site : sites) {
    if (site.name == name) {
      return &site;
    }
  }
  return nullptr;
}

const LinkSpec* ClusterSpec::FindLink(std::string_view a, std::string_view b) const {
  for (const LinkSpec& link : links) {
    if ((link.site_a == a && link.site_b == b) || (link.site_a == b && link.site_b == a)) {
      return &link;
    }
  }
  const auto is_at = [](std::string_view end, std::string_view name) {
    return end == name || SiteOfGroup(end) == name;
  };
  const auto of_groups = std::ranges::find_if(links, [&](const LinkSpec& link) {
    return !link.inside() &&
           ((is_at(link.site_a, a) && is_at(link.site_b, b)) || (is_at(link.site_a, b) && is_at(link.site_b, a)));
  });
  return of_groups == links.end() ? nullptr : &*of_groups;
}

absl::Status ValidateCluster(const ClusterSpec& cluster) {
  if (cluster.sites.empty()) {
    return absl::InvalidArgumentError("the cluster has no sites; list at least one");
  }
  std::set<std::string_view> names;
  std::map<std::string_view, const SiteSpec*> first_groups;  // of each site
  for (const SiteSpec& site : cluster.sites) {
    GP_RETURN_IF_ERROR(ValidateSite(site));
    const SiteSpec* first = first_groups.try_emplace(SiteOfGroup(site.name), &site).first->second;
    const bool is_second =
        first != &site && (first->name == SiteOfGroup(first->name) || site.name == SiteOfGroup(site.name));
    if (is_second || !names.insert(site.name).second) {
      return absl::InvalidArgumentError(fmt::format("site \"{}\" is listed twice; give each site once", site.name));
    }
    if (first->network != site.network) {
      return absl::InvalidArgumentError(fmt::format(
          "groups \"{}\" and \"{}\" have different networks; the groups of a site share one", first->name, site.name));
    }
  }
  std::set<std::pair<std::string_view, std::string_view>> pairs;
  for (const LinkSpec& link : cluster.links) {
    GP_RETURN_IF_ERROR(ValidateLink(cluster, link));
    const std::pair<std::string_view, std::string_view> pair = std::minmax<std::string_view>(link.site_a, link.site_b);
    if (!pairs.insert(pair).second) {
      return absl::InvalidArgumentError(
          fmt::format("the link between \"{}\" and \"{}\" is listed twice; a link serves both directions", link.site_a,
                      link.site_b));
    }
  }
  return absl::OkStatus();
}

}  // namespace geopipe
