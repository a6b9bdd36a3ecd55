#include "agent/config.h"

#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/config/environment.h"
#include "runtime/base/files.h"
#include "runtime/base/listen_address.h"
#include "runtime/base/network_limits.h"
#include "runtime/base/system_time.h"

namespace geopipe::agent {
namespace {

constexpr size_t kMaxLinks = 1024;

absl::Status ValidateLinks(const YamlDocument& document, const AgentConfig& config) {
  if (config.links.size() > kMaxLinks) {
    return document.Error("links", fmt::format("{} links; at most {} are taken", config.links.size(), kMaxLinks));
  }
  std::set<std::string_view> sites = {config.site};
  for (size_t i = 0; i < config.links.size(); ++i) {
    const std::string path = fmt::format("links[{}].to", i);
    if (!sites.insert(config.links[i].to).second) {
      return document.Error(path, fmt::format("'{}' is this site itself or has a link above; name each other site once",
                                              config.links[i].to));
    }
    if (config.links[i].slowdown != 1 && !config.links[i].shape) {
      return document.Error(fmt::format("links[{}].slowdown", i),
                            "slows down what is shaped, and this link is not; add shape: true, or leave it out");
    }
  }
  return absl::OkStatus();
}

// `error` makes an error of a key and a message.
template <class Error>
absl::Status ValidateDataPlane(const Error& error, const AgentConfig& config) {
  if (config.ucx_net_devices != "lo" && !config.ucx_allow_unprotected) {
    return error("ucx.net_devices",
                 fmt::format("is '{}', and what workers send is not encrypted: set it to lo, or for a link that "
                             "encrypts by itself set ucx.allow_unprotected and ucx.private_network",
                             config.ucx_net_devices));
  }
  if (config.ucx_allow_unprotected && config.ucx_private_network.empty()) {
    return error("ucx.allow_unprotected",
                 "is true, and UCX obeys whoever connects: declare the network that nobody outside the federation "
                 "reaches as ucx.private_network, like 10.20.0.0/16");
  }
  if (!config.ucx_private_network.empty()) {
    if (!config.ucx_allow_unprotected) {
      return error("ucx.private_network", "has no effect without ucx.allow_unprotected; set that too, or leave it out");
    }
    if (const absl::Status status = ParseIpv4Network(config.ucx_private_network).status(); !status.ok()) {
      return error("ucx.private_network", std::string(status.message()));
    }
  }
  const absl::StatusOr<PortRange> ports = ParsePortRange(config.ucx_ports);
  if (!ports.ok()) {
    return error("ucx.ports", std::string(ports.status().message()));
  }
  // Each worker has a listening and a data port for the transport of its epoch and, while it profiles, for a second
  // one, and one port for checkpoint files.
  const int32_t needed = 5 * config.devices + 4;
  if (ports->count() != 0 && ports->count() < needed) {
    return error("ucx.ports", fmt::format("'{}' are {} ports; {} devices and a probe need {}", config.ucx_ports,
                                          ports->count(), config.devices, needed));
  }
  return absl::OkStatus();
}

bool IsGpuUuid(std::string_view text) {
  const auto is_digit = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == '-';
  };
  return (text.starts_with("GPU-") || text.starts_with("MIG-")) && text.size() > 4 &&
         std::ranges::all_of(text.substr(4), is_digit);
}

// `error` makes an error of a key and a message.
template <class Error>
absl::Status ValidateGpus(const Error& error, const AgentConfig& config) {
  const bool by_uuid = !config.gpu_uuids.empty();
  const std::string_view key = by_uuid ? "devices.uuids" : "devices.ordinals";
  const size_t named = by_uuid ? config.gpu_uuids.size() : config.gpu_ordinals.size();
  if (named == 0) {
    return config.shares_gpus ? error("devices.share_gpus",
                                      "has no effect without devices.ordinals or devices.uuids; name the GPU of each "
                                      "device, or leave it out")
                              : absl::OkStatus();
  }
  if (config.device.kind != kGpuDevice) {
    return error(key, fmt::format("names GPUs, and devices.kind is '{}'; set devices.kind: {}, or leave it out",
                                  config.device.kind, kGpuDevice));
  }
  if (by_uuid && !config.gpu_ordinals.empty()) {
    return error("devices.uuids", "is given, and devices.ordinals too; name the GPUs in one way");
  }
  if (std::cmp_not_equal(named, config.devices)) {
    return error(key, fmt::format("names {}, and devices.count is {}; name one for each device",
                                  Counted(static_cast<int64_t>(named), "GPU"), config.devices));
  }
  std::set<std::string> gpus;
  for (int32_t device = 0; device < config.devices; ++device) {
    const std::string gpu = config.GpuOf(device);
    if (by_uuid && !IsGpuUuid(gpu)) {
      return error(key,
                   fmt::format("[{}] is '{}'; write it as `nvidia-smi -L` does, like GPU-0a1b2c3d-…", device, gpu));
    }
    if (!gpus.insert(gpu).second && !config.shares_gpus) {
      return error(key, fmt::format("names GPU {} twice; give each device a GPU of its own, or let workers share them "
                                    "with devices.share_gpus: true",
                                    gpu));
    }
  }
  return absl::OkStatus();
}

bool IsProgram(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

absl::Status Validate(const YamlDocument& document, const std::vector<std::string>& settings,
                      const AgentConfig& config) {
  const auto error = [&](std::string_view path, std::string_view message) {
    const auto last = std::find_if(settings.rbegin(), settings.rend(), [&](const std::string& setting) {
      return setting.starts_with(path) && setting.substr(path.size()).starts_with('=');
    });
    if (last != settings.rend()) {
      return absl::InvalidArgumentError(fmt::format("--set {}: {}", *last, message));
    }
    return document.Error(path, message);
  };
  const std::pair<std::string_view, const std::string*> needed[] = {
      {"site", &config.site}, {"coordinator", &config.coordinator}, {"state_dir", &config.state_dir}};
  for (const auto& [path, value] : needed) {
    if (value->empty()) {
      return error(path, "is not given; set it in the file, the environment or with --set");
    }
  }
  for (const auto& [path, value] : {std::pair{"site", &config.site}, {"node", &config.node}}) {
    if (!value->empty() && !IsSiteName(*value)) {
      return error(path, fmt::format("is '{}'; it must be {}", *value, kSiteNameRule));
    }
  }
  for (size_t i = 0; i < config.links.size(); ++i) {
    if (!IsSiteName(config.links[i].to)) {
      return error(fmt::format("links[{}].to", i),
                   fmt::format("is '{}'; it must be {}", config.links[i].to, kSiteNameRule));
    }
  }
  // This machine sends nothing in the clear to others until there are certificates.
  const absl::Status coordinator = ParseListenAddress("coordinator", config.coordinator).status();
  if (absl::IsInvalidArgument(coordinator)) {
    return error("coordinator", fmt::format("'{}' is not host:port; write it like 127.0.0.1:7070, and IPv6 in "
                                            "brackets, like [::1]:7070",
                                            config.coordinator));
  }
  if (!coordinator.ok()) {
    return error("coordinator",
                 fmt::format("'{}' is not a loopback address; without certificates nothing else is dialled",
                             config.coordinator));
  }
  GP_RETURN_IF_ERROR(ValidateDataPlane(error, config));
  if (config.device.memory_bytes <= 0) {
    return error("devices.memory", "is not given; say what each device has for a job, like 2GiB");
  }
  if (config.device.reserve_bytes.value_or(0) >= config.device.memory_bytes) {
    return error("devices.reserve",
                 fmt::format("is {} of devices.memory {}; it must leave something of it",
                             FormatBytes(*config.device.reserve_bytes), FormatBytes(config.device.memory_bytes)));
  }
  GP_RETURN_IF_ERROR(ValidateGpus(error, config));
  if (config.network != NetworkConfig() && !config.network.spec.given()) {
    return error("network.bandwidth",
                 "is not given; say what the network between the nodes of this site has, or leave "
                 "network out");
  }
  if (!config.worker_binary.empty() && !IsProgram(config.worker_binary)) {
    return error("worker_binary", fmt::format("'{}' is not an executable file; name geopipe-worker, or leave it out",
                                              config.worker_binary));
  }
  if (!config.metrics.empty()) {
    if (const absl::Status status = ParseListenAddress("metrics", config.metrics).status(); !status.ok()) {
      return error("metrics", std::string(status.message()));
    }
  }
  if (config.KeeperSocketPath().size() >= sizeof(sockaddr_un::sun_path)) {
    return error(
        "state_dir",
        fmt::format("the socket path {} has {} bytes and a Unix socket takes at most {}; choose a "
                    "shorter folder",
                    config.KeeperSocketPath(), config.KeeperSocketPath().size(), sizeof(sockaddr_un::sun_path) - 1));
  }
  return ValidateLinks(document, config);
}

}  // namespace

absl::StatusOr<AgentConfig> ReadAgentConfig(const std::string& path, const std::vector<std::string>& settings) {
  YamlDocument document{.file = "configuration", .root = {}};
  AgentConfig config;
  if (!path.empty()) {
    GP_ASSIGN_OR_RETURN(document, ReadYaml(path));
    GP_RETURN_IF_ERROR(AgentConfigSchema().Overlay(document, &config));
  }
  GP_RETURN_IF_ERROR(CheckEnvironmentNames("GEOPIPE_AGENT_", AgentConfigSchema().KeyPaths()));
  GP_RETURN_IF_ERROR(AgentConfigSchema().OverlayEnvironment("GEOPIPE_AGENT_", &config));
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format("--set {}: write it like --set devices.count=2", setting));
    }
    GP_RETURN_IF_ERROR(AgentConfigSchema().OverlayText(setting.substr(0, equals), setting.substr(equals + 1),
                                                       fmt::format("--set {}", setting), &config));
  }
  GP_RETURN_IF_ERROR(Validate(document, settings, config));
  GP_RETURN_IF_ERROR(CheckSystemTime(Clock::Real().UnixNowNs()));
  if (config.node.empty()) {
    config.node = config.site + "-0";
  }
  if (config.worker_binary.empty()) {
    GP_ASSIGN_OR_RETURN(config.worker_binary, SiblingProgram("geopipe-worker"));
  }
  return config;
}

}  // namespace geopipe::agent
