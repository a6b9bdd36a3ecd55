#include "agent/config.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <set>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/listen_address.h"
#include "runtime/base/schema.h"

namespace geopipe::agent {
namespace {

constexpr double kMaxSlowdown = 1000;
constexpr int32_t kMaxDevices = 1024;
constexpr int32_t kMaxThreads = 1024;
constexpr size_t kMaxLinks = 1024;

// A key of DeviceSpec, reached through the configuration.
template <auto kMember, class M>
void DeviceKey(Schema<AgentConfig>& schema, std::string key, ValueType<M> type, std::string doc) {
  schema.Key<M>(
      std::move(key), std::move(type), [](const AgentConfig& config) { return config.device.*kMember; },
      [](AgentConfig* config, M value) { config->device.*kMember = std::move(value); }, std::move(doc));
}

Schema<AgentConfig> DevicesSchema() {
  using C = AgentConfig;
  using D = DeviceSpec;
  Schema<C> schema;
  schema.Key("count", Integer32Value(), &C::devices, "Devices of this node; one worker process each.");
  schema.Key("threads", Integer32Value(), &C::threads, "Compute threads of each worker.");
  DeviceKey<&D::kind>(schema, "kind", StringValue(), "Free text, for people.");
  DeviceKey<&D::memory_bytes>(schema, "memory", BytesValue(), "Capacity of each device for a job, like 2GiB; needed.");
  DeviceKey<&D::peak_flops>(schema, "peak_flops", NumberValue(), "Per second, at the job's precision.");
  DeviceKey<&D::memory_bandwidth_bytes_per_s>(schema, "memory_bandwidth", BandwidthValue(), "Of the device's memory.");
  DeviceKey<&D::intra_node_bandwidth_bytes_per_s>(schema, "intra_node_bandwidth", BandwidthValue(),
                                                  "Between devices of the node, per direction.");
  DeviceKey<&D::efficiency>(schema, "efficiency", NumberValue(), "Share of peak_flops that large products reach.");
  return schema;
}

Schema<LinkConfig> LinkSchema() {
  using L = LinkConfig;
  return Schema<L>()
      .Key("to", StringValue(), &L::to, "The other site.", Need::kRequired)
      .Key("latency", DurationValue(), &L::latency_ns, "One way.", Need::kRequired)
      .Key("bandwidth", BandwidthValue(), &L::bandwidth_bytes_per_s, "Per direction.", Need::kRequired)
      .Key("shape", BooleanValue(), &L::shape, "The workers delay and pace what they send (rehearsal).")
      .Key("slowdown", NumberValue(), &L::slowdown,
           "Drill: the shaped link is so many times slower than it is declared, in latency and bandwidth.")
      .Key("pacer_path", StringValue(), &L::pacer_path,
           "File by which the workers that send over the link share its bandwidth; default in state_dir.");
}

Schema<AgentConfig> LogSchema() {
  return Schema<AgentConfig>()
      .Key("level",
           ChoiceValue<LogLevel>({{"debug", LogLevel::kDebug},
                                  {"info", LogLevel::kInfo},
                                  {"warning", LogLevel::kWarning},
                                  {"error", LogLevel::kError}}),
           &AgentConfig::log_level, "Least level that is logged.")
      .Key("format", ChoiceValue<LogFormat>({{"text", LogFormat::kText}, {"json", LogFormat::kJson}}),
           &AgentConfig::log_format, "For people or for programs.");
}

const Schema<AgentConfig>& ConfigSchema() {
  using C = AgentConfig;
  static const auto& schema = *new Schema<C>(
      Schema<C>()
          .Key("site", StringValue(), &C::site, "Datacenter of this node; needed.")
          .Key("node", StringValue(), &C::node, "Unique within the site; default <site>-0.")
          .Key("coordinator", StringValue(), &C::coordinator, "host:port; needed.")
          .Key("state_dir", StringValue(), &C::state_dir, "Folder for socket, logs and pacers; needed.")
          .Key("metrics", StringValue(), &C::metrics,
               "Loopback address and port that Prometheus scrapes, like 127.0.0.1:9465; the workers take any free port "
               "and write it to state_dir. None when empty.")
          .Key("worker_binary", StringValue(), &C::worker_binary, "Default: geopipe-worker beside this program.")
          .Group("devices", DevicesSchema(), "The devices of this node, all alike.")
          .Group("ucx",
                 Schema<C>()
                     .Key("tls", StringValue(), &C::ucx_tls, "UCX_TLS of the workers.")
                     .Key("net_devices", StringValue(), &C::ucx_net_devices, "UCX_NET_DEVICES of the workers.")
                     .Key("allow_unprotected", BooleanValue(), &C::ucx_allow_unprotected,
                          "Take net_devices other than lo: the data plane leaves this host in clear; only on links "
                          "that encrypt themselves (MACsec, IPsec, OTN)."),
                 "Transport between workers.")
          .List("links", LinkSchema(), &C::links, "Links of this site to the others.")
          .Key("orphan_grace", DurationValue(), &C::orphan_grace_ns,
               "A worker that hears of no agent for so long stops itself.")
          .Group("log", LogSchema(), "What the agent and its workers log.")
          .Key("die_with_parent", BooleanValue(), &C::die_with_parent,
               "End, with the workers, when the process that started the agent ends."));
  return schema;
}

// Until there are certificates nothing leaves this machine in the clear.
bool IsLoopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  const bool numeric = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return (numeric && host.starts_with("127.")) || host == "localhost" || host == "[::1]";
}

absl::Status ValidateLinks(const YamlDocument& document, const AgentConfig& config) {
  if (config.links.size() > kMaxLinks) {
    return document.Error(document.Locate("links"), "links",
                          fmt::format("{} links; at most {} are taken", config.links.size(), kMaxLinks));
  }
  std::set<std::string_view> sites = {config.site};
  for (size_t i = 0; i < config.links.size(); ++i) {
    const std::string path = fmt::format("links[{}].to", i);
    if (!sites.insert(config.links[i].to).second) {
      return document.Error(
          document.Locate(path), path,
          fmt::format("'{}' is this site itself or has a link above; name each other site once", config.links[i].to));
    }
    if (!(config.links[i].slowdown > 0 && config.links[i].slowdown <= kMaxSlowdown)) {
      const std::string key = fmt::format("links[{}].slowdown", i);
      return document.Error(document.Locate(key), key,
                            fmt::format("{} must be above 0 and at most {}", config.links[i].slowdown, kMaxSlowdown));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const YamlDocument& document, const std::vector<std::string>& settings,
                      const AgentConfig& config) {
  const auto error = [&](std::string_view path, std::string_view message) {
    for (const std::string& setting : settings) {
      if (setting.starts_with(path) && setting.substr(path.size()).starts_with('=')) {
        return absl::InvalidArgumentError(fmt::format("--set {}: {}", setting, message));
      }
    }
    return document.Error(document.Locate(path), path, message);
  };
  const std::pair<std::string_view, const std::string*> needed[] = {
      {"site", &config.site}, {"coordinator", &config.coordinator}, {"state_dir", &config.state_dir}};
  for (const auto& [path, value] : needed) {
    if (value->empty()) {
      return error(path, "is not given; set it in the file, the environment or with --set");
    }
  }
  if (config.coordinator.find(':') == std::string::npos) {
    return error("coordinator", fmt::format("'{}' has no port; write it like 127.0.0.1:7070", config.coordinator));
  }
  if (!IsLoopback(config.coordinator)) {
    return error("coordinator",
                 fmt::format("'{}' is not a loopback address; without certificates nothing else is dialled",
                             config.coordinator));
  }
  if (config.ucx_net_devices != "lo" && !config.ucx_allow_unprotected) {
    return error("ucx.net_devices",
                 fmt::format("is '{}', and what workers send is not encrypted: set it to lo, or for a link that "
                             "encrypts by itself set ucx.allow_unprotected",
                             config.ucx_net_devices));
  }
  if (config.devices < 1 || config.devices > kMaxDevices) {
    return error("devices.count", fmt::format("{} must be from 1 to {}", config.devices, kMaxDevices));
  }
  if (config.threads < 1 || config.threads > kMaxThreads) {
    return error("devices.threads", fmt::format("{} must be from 1 to {}", config.threads, kMaxThreads));
  }
  if (config.device.memory_bytes <= 0) {
    return error("devices.memory", "is not given; say what each device has for a job, like 2GiB");
  }
  if (!(config.device.efficiency > 0 && config.device.efficiency <= 1)) {
    return error("devices.efficiency", fmt::format("{} must be above 0 and at most 1", config.device.efficiency));
  }
  if (!config.metrics.empty()) {
    if (const absl::Status status = ParseListenAddress("metrics", config.metrics).status(); !status.ok()) {
      return document.Error(document.Locate("metrics"), "metrics", std::string(status.message()));
    }
  }
  if (config.SocketPath().size() >= sizeof(sockaddr_un::sun_path)) {
    return error("state_dir",
                 fmt::format("the socket path {} has {} bytes and a Unix socket takes at most {}; choose a "
                             "shorter folder",
                             config.SocketPath(), config.SocketPath().size(), sizeof(sockaddr_un::sun_path) - 1));
  }
  return ValidateLinks(document, config);
}

}  // namespace

std::string AgentConfig::WorkerMetricsAddressPath(int32_t device) const {
  return fmt::format("{}/worker-{}.metrics.address", state_dir, device);
}

std::string AgentConfig::PacerPath(std::string_view to_site) const {
  for (const LinkConfig& link : links) {
    if (link.to == to_site && !link.pacer_path.empty()) {
      return link.pacer_path;
    }
  }
  return fmt::format("{}/pacer-{}-{}", state_dir, site, to_site);
}

absl::StatusOr<AgentConfig> ReadAgentConfig(const std::string& path, const std::vector<std::string>& settings) {
  YamlDocument document{.file = "configuration", .root = {}};
  AgentConfig config;
  if (!path.empty()) {
    GP_ASSIGN_OR_RETURN(document, ReadYaml(path));
    GP_RETURN_IF_ERROR(ConfigSchema().Overlay(document, &config));
  }
  GP_RETURN_IF_ERROR(ConfigSchema().OverlayEnvironment("GEOPIPE_AGENT_", &config));
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format("--set {}: write it like --set devices.count=2", setting));
    }
    GP_RETURN_IF_ERROR(ConfigSchema().OverlayText(setting.substr(0, equals), setting.substr(equals + 1),
                                                  fmt::format("--set {}", setting), &config));
  }
  GP_RETURN_IF_ERROR(Validate(document, settings, config));
  if (config.node.empty()) {
    config.node = config.site + "-0";
  }
  if (config.worker_binary.empty()) {
    GP_ASSIGN_OR_RETURN(config.worker_binary, SiblingProgram("geopipe-worker"));
  }
  return config;
}

std::string AgentConfigReference() { return ConfigSchema().Reference(); }

}  // namespace geopipe::agent
