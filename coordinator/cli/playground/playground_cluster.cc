#include "coordinator/cli/playground/playground_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "coordinator/cli/playground/playground_gpus.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/host_memory.h"

namespace geopipe {
namespace {

constexpr int64_t kStartTimeoutNs = 30'000'000'000;
constexpr size_t kLastWordsBytes = 600;

// YAML understands JSON's double-quoted strings.
std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

// Four fifths of this machine's memory, shared by all devices.
int64_t DeviceMemoryBytes(int32_t devices) { return HostMemoryBytes() / 5 * 4 / devices; }

std::string CoordinatorConfig(const std::filesystem::path& state_folder) {
  return fmt::format("listen: 127.0.0.1:0\nmetrics: 127.0.0.1:0\nstate_dir: {}\n", Quoted(state_folder.string()));
}

// A modelled run allocates messages alone, and GPUs have a memory of their own, so their devices are as large as the
// topology says; others share this machine's.
DeviceSpec DeviceOf(const PlaygroundLayout& layout, const PlaygroundNode& node, BackendKind backend) {
  DeviceSpec device = node.device.value_or(DeviceSpec());
  const int64_t share_bytes = DeviceMemoryBytes(layout.devices());
  const bool as_described = backend != BackendKind::kCpu && device.memory_bytes > 0;
  if (backend == BackendKind::kCuda) {
    device.kind = kGpuDevice;
  }
  device.memory_bytes = as_described              ? device.memory_bytes
                        : device.memory_bytes > 0 ? std::min(device.memory_bytes, share_bytes)
                                                  : share_bytes;
  if (!as_described) {
    device.attention.reset();
    device.roofline.reset();
    device.reserve_bytes.reset();
  }
  return device;
}

// Figures that are known; a bandwidth of zero has no spelling.
std::string FiguresOf(const DeviceSpec& device) {
  std::string text = fmt::format("kind: {}, memory: {}, efficiency: {}", Quoted(device.kind),
                                 FormatBytes(device.memory_bytes), device.efficiency);
  if (device.peak_flops > 0) {
    text += fmt::format(", peak_flops: {}", device.peak_flops);
  }
  if (device.memory_bandwidth_bytes_per_s > 0) {
    text += fmt::format(", memory_bandwidth: {}", FormatBandwidth(device.memory_bandwidth_bytes_per_s));
  }
  if (device.intra_node_bandwidth_bytes_per_s > 0) {
    text += fmt::format(", intra_node_bandwidth: {}", FormatBandwidth(device.intra_node_bandwidth_bytes_per_s));
  }
  if (device.host_bandwidth_bytes_per_s > 0) {
    text += fmt::format(", host_bandwidth: {}", FormatBandwidth(device.host_bandwidth_bytes_per_s));
  }
  if (device.attention_efficiency.has_value()) {
    text += fmt::format(", attention_efficiency: {}", *device.attention_efficiency);
  }
  if (device.attention.has_value()) {
    text += fmt::format(", attention: {}", device.attention == Attention::kBlocked ? "blocked" : "dense");
  }
  if (device.roofline.has_value()) {
    text += fmt::format(", roofline: {}", device.roofline == Roofline::kOperation ? "operation" : "block");
  }
  if (device.reserve_bytes.has_value()) {
    text += fmt::format(", reserve: {}", FormatBytes(*device.reserve_bytes));
  }
  return text;
}

// `gpus`: of this machine, where the devices are such; `first`: number of the node's first device on it.
std::string DevicesOf(const PlaygroundNode& node, const DeviceSpec& device, const std::vector<std::string>& gpus,
                      int32_t first) {
  return fmt::format("count: {}, threads: 1, {}{}", node.devices, FiguresOf(device),
                     device.kind == kGpuDevice ? GpuKeys(gpus, first, node.devices) : "");
}

std::string AgentConfig(const PlaygroundLayout& layout, const PlaygroundNode& node, const std::string& devices,
                        const std::string& endpoint, const std::filesystem::path& state_folder,
                        const std::filesystem::path& pacer_folder) {
  std::string text = fmt::format(
      "site: {}\nnode: {}\ncoordinator: {}\nstate_dir: {}\nmetrics: 127.0.0.1:0\ndie_with_parent: true\n"
      "devices: {{{}}}\n"
      "ucx: {{tls: tcp, net_devices: lo}}\n",
      Quoted(node.site), Quoted(node.node), Quoted(endpoint), Quoted(state_folder.string()), devices);
  if (node.network.given()) {
    text += fmt::format("network: {{bandwidth: {}, latency: {}, per: {}, shape: true}}\n",
                        FormatBandwidth(node.network.bandwidth_bytes_per_s), FormatDuration(node.network.latency_ns),
                        node.network.per == NetworkSpec::Per::kNode ? "node" : "device");
  }
  std::string links;
  for (const PlaygroundLinkEnd& link : layout.links) {
    if (link.from_site == node.site) {
      links += fmt::format("  - {{to: {}, latency: {}, bandwidth: {}, shape: true, slowdown: {}, pacer_path: {}}}\n",
                           Quoted(link.to_site), FormatDuration(link.link.latency_ns),
                           FormatBandwidth(link.link.bandwidth_bytes_per_s), link.slowdown,
                           Quoted((pacer_folder / ("pacer-" + link.pacer)).string()));
    }
  }
  return links.empty() ? text : text + "links:\n" + links;
}

std::string LastWords(const std::filesystem::path& log) {
  const absl::StatusOr<std::string> tail = ReadFileTail(log, kLastWordsBytes);
  return tail.ok() && !tail->empty() ? fmt::format("; the end of its log:\n{}", *tail) : "";
}

}  // namespace

PlaygroundCluster::~PlaygroundCluster() { Stop(0); }

absl::StatusOr<std::string> PlaygroundCluster::Launch(const std::string& program, const std::string& name,
                                                      const std::filesystem::path& config,
                                                      const std::filesystem::path& log,
                                                      const std::vector<std::string>& more, int interrupt_fd) {
  GP_ASSIGN_OR_RETURN(ReadyPipe ready, ReadyPipe::Create());
  ProcessSpec spec;
  GP_ASSIGN_OR_RETURN(spec.program, SiblingProgram(program));
  spec.args = {"--config", config.string(), "--ready-fd", fmt::format("{}", ready.child_fd()), "--die-with-parent"};
  spec.args.insert(spec.args.end(), more.begin(), more.end());
  spec.stdout_path = log;
  spec.stderr_path = log;
  spec.inherited_fds = {ready.child_fd()};
  spec.parent_death_signal = SIGTERM;
  GP_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  children_.push_back({name, log, std::move(process)});
  absl::StatusOr<std::string> line = ready.ReadLine(children_.back().process, kStartTimeoutNs, interrupt_fd);
  if (!line.ok() && !absl::IsCancelled(line.status())) {
    return absl::Status(line.status().code(), fmt::format("{} did not get ready: {}{}", name,
                                                          std::string(line.status().message()), LastWords(log)));
  }
  return line;
}

absl::StatusOr<std::unique_ptr<PlaygroundCluster>> PlaygroundCluster::Start(const PlaygroundLayout& layout,
                                                                            const std::filesystem::path& state_folder,
                                                                            const std::filesystem::path& log_folder,
                                                                            const Options& options, int interrupt_fd) {
  std::unique_ptr<PlaygroundCluster> cluster(new PlaygroundCluster());
  const std::filesystem::path coordinator_folder = state_folder / "coordinator";
  GP_RETURN_IF_ERROR(MakeFolder(coordinator_folder));
  GP_RETURN_IF_ERROR(MakeFolder(log_folder));
  const std::filesystem::path coordinator_config = state_folder / "coordinator.yaml";
  GP_RETURN_IF_ERROR(WriteFileAtomically(coordinator_config, CoordinatorConfig(coordinator_folder)));
  GP_ASSIGN_OR_RETURN(cluster->endpoint_,
                      cluster->Launch("geopipe-coordinator", "geopipe-coordinator", coordinator_config,
                                      log_folder / "coordinator.log", {}, interrupt_fd));
  std::vector<std::string> gpus;
  std::vector<std::string> agent_flags;
  if (options.backend == BackendKind::kCuda) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    gpus = GpusHere(visible == nullptr ? "" : visible);
  }
  if (!options.gpu_library.empty()) {
    gpus = {"0"};  // each process that opens the library has its own
    agent_flags = {"--gpu-library", options.gpu_library};
  }
  int32_t first_device = 0;
  for (const PlaygroundNode& node : layout.nodes) {
    const std::string name = fmt::format("{}-{}", node.site, node.node);
    const std::filesystem::path agent_folder = state_folder / name;
    GP_RETURN_IF_ERROR(MakeFolder(agent_folder));
    const std::filesystem::path agent_config = state_folder / (name + ".yaml");
    const std::string devices = DevicesOf(node, DeviceOf(layout, node, options.backend), gpus, first_device);
    first_device += node.devices;
    GP_RETURN_IF_ERROR(WriteFileAtomically(
        agent_config, AgentConfig(layout, node, devices, cluster->endpoint_, agent_folder, state_folder)));
    GP_RETURN_IF_ERROR(cluster
                           ->Launch("geopipe-agent", fmt::format("geopipe-agent of site {}", node.site), agent_config,
                                    log_folder / fmt::format("agent-{}.log", name), agent_flags, interrupt_fd)
                           .status());
  }
  return cluster;
}

std::vector<int> PlaygroundCluster::pidfds() const {
  std::vector<int> fds;
  for (const Child& child : children_) {
    fds.push_back(child.process.pidfd());
  }
  return fds;
}

absl::Status PlaygroundCluster::Check() {
  for (Child& child : children_) {
    if (const std::optional<ExitStatus> exit_status = child.process.Wait(0)) {
      return absl::UnavailableError(
          fmt::format("{} {}{}", child.name, exit_status->Description(), LastWords(child.log)));
    }
  }
  return absl::OkStatus();
}

void PlaygroundCluster::Stop(int64_t grace_ns) {
  // Agents end first, all at once; each takes its workers along.
  const int64_t deadline_ns = Clock::Real().NowNs() + grace_ns;
  for (size_t i = 1; i < children_.size(); ++i) {
    children_[i].process.Signal(SIGTERM);
  }
  while (!children_.empty()) {
    const int64_t left_ns = deadline_ns - Clock::Real().NowNs();
    children_.back().process.Terminate(left_ns > 0 ? left_ns : 0);
    children_.pop_back();
  }
}

}  // namespace geopipe
