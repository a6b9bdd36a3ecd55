#include "runtime/manifest/agent_config.h"

#include <fmt/format.h>

#include "runtime/manifest/daemon_schema.h"

namespace geopipe::agent {
namespace {

constexpr double kMaxSlowdown = 1000;
constexpr int32_t kMaxDevices = 256;
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxGpuOrdinal = 255;
constexpr int64_t kMaxLatencyNs = 60'000'000'000;  // one way; as a topology's links
constexpr int64_t kMaxOrphanGraceNs = int64_t{30} * 24 * 3600 * 1'000'000'000;

Schema<LinkConfig> LinkSchema() {
  using L = LinkConfig;
  return Schema<L>()
      .Key("to", StringValue(), &L::to, "The other site.", Need::kRequired)
      .Key("latency", From<int64_t>(0, kMaxLatencyNs, DurationValue()), &L::latency_ns, "One way.", Need::kRequired)
      .Key("bandwidth", BandwidthValue(), &L::bandwidth_bytes_per_s, "Per direction.", Need::kRequired)
      .Key("shape", BooleanValue(), &L::shape, "The workers delay and pace what they send (rehearsal).")
      .Key("slowdown",
           Restricted<double>(NumberValue(), fmt::format("above 0 and at most {}", kMaxSlowdown),
                              [](const double& factor) { return factor > 0 && factor <= kMaxSlowdown; }),
           &L::slowdown,
           "Factor by which the shaped link is slower than declared, in latency and bandwidth (rehearsal).")
      .Key("pacer_path", PathValue(""), &L::pacer_path,
           "File through which workers share the bandwidth of the link; default in state_dir.");
}

Schema<NetworkConfig> NetworkConfigSchema() {
  using N = NetworkConfig;
  return Schema<N>()
      .Embed(NetworkSchema(), &N::spec)
      .Key("shape", BooleanValue(), &N::shape,
           "The workers delay and pace what they send to other nodes of the site (rehearsal).");
}

}  // namespace

const Schema<AgentConfig>& AgentConfigSchema() {
  using C = AgentConfig;
  static const auto& schema = *new Schema<C>(
      Schema<C>()
          .Key("site", StringValue(), &C::site, "Datacenter of this node; needed.")
          .Key("node", StringValue(), &C::node, "Unique within the site; default <site>-0.")
          .Key("coordinator", StringValue(), &C::coordinator, "host:port; needed.")
          .Key("state_dir", PathValue(""), &C::state_dir,
               "Folder for sockets, logs, pacers and state of the next agent; needed.")
          .Key("metrics", StringValue(), &C::metrics,
               "Loopback address and port that Prometheus scrapes, like 127.0.0.1:9465; the workers take any free port "
               "and write it to state_dir. None when empty.")
          .Key("worker_binary", PathValue(""), &C::worker_binary, "Default: geopipe-worker beside this program.")
          .Group("devices",
                 Schema<C>()
                     .Key("count", From<int32_t>(1, kMaxDevices, Integer32Value()), &C::devices,
                          "Devices of this node; one worker process each.")
                     .Key("threads", From<int32_t>(1, kMaxThreads, Integer32Value()), &C::threads,
                          "Compute threads of each worker.")
                     .Embed(DeviceSchema(), &C::device)
                     .Key("ordinals", ListValue(From<int32_t>(0, kMaxGpuOrdinal, Integer32Value())), &C::gpu_ordinals,
                          "Of kind cuda: the GPU of each device, by its number in nvidia-smi. Default: 0, 1, …")
                     .Key("uuids", ListValue(StringValue()), &C::gpu_uuids,
                          "The same by UUID, which stays when GPUs are added: like GPU-0a1b2c3d-….")
                     .Key("share_gpus", BooleanValue(), &C::shares_gpus,
                          "Take GPUs that ordinals or uuids name more than once: workers share them (rehearsal)."),
                 "The devices of this node, all alike. Those of kind cuda are GPUs, one for each worker.")
          .Group("ucx",
                 Schema<C>()
                     .Key("tls", StringValue(), &C::ucx_tls, "UCX_TLS of the workers.")
                     .Key("net_devices", StringValue(), &C::ucx_net_devices, "UCX_NET_DEVICES of the workers.")
                     .Key("allow_unprotected", BooleanValue(), &C::ucx_allow_unprotected,
                          "Take net_devices other than lo: the data plane leaves this host in clear; only on links "
                          "that encrypt themselves (MACsec, IPsec, WireGuard, OTN).")
                     .Key("private_network", StringValue(), &C::ucx_private_network,
                          "The network of these devices, like 10.20.0.0/16, which nobody outside the federation "
                          "reaches: UCX obeys whoever connects. Needed with allow_unprotected.")
                     .Key("ports", StringValue(), &C::ucx_ports,
                          "Ports that workers and probes listen on, like 47000-47063, for a firewall to name; five "
                          "for each device and four more. Any free ones when empty."),
                 "Transport between workers.")
          .Map("network", NetworkConfigSchema(), &C::network,
               "Network between the nodes of this site; the same on all of them. None: it is measured.")
          .List("links", LinkSchema(), &C::links, "Links of this site to the others.")
          .Key("orphan_grace", From(AgentConfig::kMinOrphanGraceNs, kMaxOrphanGraceNs, DurationValue()),
               &C::orphan_grace_ns, "Time after which a worker that hears no agent and finishes no iteration exits.")
          .Key("leave_grace", From<int64_t>(0, AgentConfig::kMaxLeaveGraceNs, DurationValue()), &C::leave_grace_ns,
               "Time from SIGTERM of the node's keeper, which says that the node goes down, to the end of its workers; "
               "jobs write their states meanwhile and leave, where they can. Longer than a checkpoint takes, shorter "
               "than what sends SIGKILL afterwards waits.")
          .Key("pass_environment", ListValue(StringValue()), &C::pass_environment,
               "Further variables of the agent's environment that its workers get. By themselves they get those of "
               "paths, "
               "locale and sanitizers, and of CUDA, NCCL, UCX, OpenMP, oneDNN, malloc and GeoPipe.")
          .Group("log", LogSchema(&C::log_level, &C::log_format), "What the agent and its workers log.")
          .Key("die_with_parent", BooleanValue(), &C::die_with_parent,
               "End, with the workers, when the process that started the agent ends."));
  return schema;
}

std::string AgentConfig::WorkerMetricsAddressPath(int32_t device) const {
  return fmt::format("{}/worker-{}.metrics.address", state_dir, device);
}

std::string AgentConfig::GpuOf(int32_t number) const {
  const auto index = static_cast<size_t>(number);
  if (device.kind != kGpuDevice) {
    return "";
  }
  if (index < gpu_uuids.size()) {
    return gpu_uuids[index];
  }
  return std::to_string(index < gpu_ordinals.size() ? gpu_ordinals[index] : number);
}

std::string AgentConfig::PacerPath(std::string_view to_site) const {
  for (const LinkConfig& link : links) {
    if (link.to == to_site && !link.pacer_path.empty()) {
      return link.pacer_path;
    }
  }
  return fmt::format("{}/pacer-{}-{}", state_dir, site, to_site);
}

std::string AgentConfig::NetworkPacerPath(std::optional<int32_t> device) const {
  return fmt::format("{}/pacer-network{}", state_dir, device.has_value() ? fmt::format("-{}", *device) : "");
}

}  // namespace geopipe::agent
