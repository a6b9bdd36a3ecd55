// geopipe-worker: one process per device. It is started by its agent, and told over the agent's Unix socket what to
// profile, prepare and train (WorkerService.Attach).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/grpc/process_limits.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/metrics.h"
#include "runtime/base/network_limits.h"
#include "runtime/base/output.h"
#include "runtime/base/process.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/terminal.h"
#include "runtime/base/thread_name.h"
#include "runtime/base/version.h"
#include "runtime/checkpoint/exchange/file_server.h"
#include "runtime/compute/open.h"
#include "runtime/main/probe_process.h"
#include "runtime/rehearsal/host/quick_wakeup.h"
#include "runtime/rehearsal/worker/rehearsed_exchange.h"
#include "runtime/rehearsal/worker/rehearsed_job.h"
#include "runtime/transport/ucx/device_ip.h"
#include "runtime/transport/ucx/ucx_transport.h"
#include "runtime/worker/agent_stream.h"
#include "runtime/worker/worker_core.h"
#include "runtime/worker/worker_metrics.h"

namespace geopipe {
namespace {

constexpr int64_t kLongNs = 3'600'000'000'000;
constexpr int64_t kFlushNs = 1'000'000'000;
constexpr int64_t kExitLimitNs = WorkerControl::kFlushNs + 500'000'000;
constexpr int64_t kStopGraceNs = 300'000'000;

struct Flags {
  std::string agent;
  std::string site;
  std::string node;
  std::string job;
  int32_t device = 0;
  uint64_t incarnation = 0;
  int64_t orphan_grace_ns = 30'000'000'000;
  std::string metrics;
  std::string metrics_address_file;
  std::string log_level = "info";
  std::string log_format = "text";
  bool die_with_parent = false;
  std::string private_network;
  std::string ports;
  NetworkLimits limits = {};  // from the two before
  std::optional<int64_t> kept_memory_fd;
  std::optional<int64_t> probe_fd;
  std::string probe_pacer;
  bool probe_near = false;
  bool backends = false;
  int32_t gpus = 0;
  std::string gpu_library;
  bool version = false;
};

LogContext LogContextOf(const Flags& flags, std::optional<uint64_t> epoch) {
  LogContext context;
  context.job = flags.job;
  context.epoch = epoch;
  context.site = flags.site;
  context.worker = fmt::format("{}/{}/{}", flags.site, flags.node, flags.device);
  return context;
}

absl::Status ParseFlags(int argc, char** argv, FlagSet& set, Flags& flags) {
  set.Add("agent", &flags.agent, "ADDRESS", "The agent's socket, as unix:PATH. Required.");
  set.Add("site", &flags.site, "NAME", "Site of this worker. Required.");
  set.Add("node", &flags.node, "NAME", "Node of this worker within its site. Required.");
  set.Add("device", &flags.device, "N", "Device of the node that this worker drives.");
  set.Add("job", &flags.job, "NAME", "The job it works for. Required.");
  set.Add("incarnation", &flags.incarnation, "N", "Names this life of the worker; given by the agent.");
  set.AddDuration("orphan-grace", &flags.orphan_grace_ns,
                  "Stops when no agent was heard and no iteration finished for so long.");
  set.Add("metrics", &flags.metrics, "ADDRESS", "Loopback host:port that Prometheus scrapes; port 0: any free one.");
  set.Add("metrics-address-file", &flags.metrics_address_file, "FILE", "The bound address is written there.");
  set.Add("log-level", &flags.log_level, "LEVEL", "debug, info, warning or error.");
  set.Add("log-format", &flags.log_format, "text|json", "How log lines are written.");
  set.Add("die-with-parent", &flags.die_with_parent, "Ends when its agent ends.");
  set.Add("private-network", &flags.private_network, "CIDR",
          "Lets the data plane leave this host, in clear, on devices of this network, like 10.20.0.0/16.");
  set.Add("ports", &flags.ports, "FIRST-LAST", "Ports of the data plane, like 47000-47063.");
  set.Add("kept-memory-fd", &flags.kept_memory_fd, "N",
          "Memory that outlives this process, for its latest states; given by the keeper.");
  set.Add("probe-fd", &flags.probe_fd, "N", "Measures one link, as ordered over this socket, and exits.");
  set.Add("probe-near", &flags.probe_near, "The other end of that link is in the same site.");
  set.Add("probe-pacer", &flags.probe_pacer, "FILE", "Pacer of that link, where it is rehearsed.");
  set.Add("backends", &flags.backends, "Prints the backends that workers of this host can run, and exits.");
  set.Add("gpus", &flags.gpus, "N", "With --backends: the workers drive the first N GPUs that this process sees.");
  set.AddPath("gpu-library", &flags.gpu_library, "FILE",
              "Tests: the library that GPUs are reached through, in the place of the installed one.");
  set.Add("version", &flags.version, "Prints the version and exits.");
  GP_RETURN_IF_ERROR(set.Parse(argc - 1, argv + 1));
  if (set.help_requested() || flags.version || flags.backends) {
    return absl::OkStatus();
  }
  if (!flags.private_network.empty()) {
    GP_ASSIGN_OR_RETURN(flags.limits.private_network, ParseIpv4Network(flags.private_network));
  }
  GP_ASSIGN_OR_RETURN(flags.limits.ports, ParsePortRange(flags.ports));
  if (flags.probe_fd.has_value()) {
    return absl::OkStatus();
  }
  for (const auto& [name, value] :
       {std::pair{"agent", &flags.agent}, {"site", &flags.site}, {"node", &flags.node}, {"job", &flags.job}}) {
    if (value->empty()) {
      return absl::InvalidArgumentError(
          fmt::format("--{} is missing; workers are started by geopipe-agent, which gives it", name));
    }
  }
  if (flags.device < 0) {
    return absl::InvalidArgumentError(fmt::format("--device {}: devices are counted from 0", flags.device));
  }
  if (!flags.agent.starts_with("unix:")) {
    return absl::InvalidArgumentError(fmt::format("--agent is {}; it must be unix:PATH", flags.agent));
  }
  return absl::OkStatus();
}

// The backends that workers of this host cannot run on one of the devices they are to drive.
std::vector<RefusedBackend> RefusedHere(const Flags& flags) {
  std::vector<RefusedBackend> refused;
  for (const BackendKind kind : kBackendKinds) {
    const int32_t devices = kind == BackendKind::kCuda ? flags.gpus : 1;
    absl::Status opened;
    for (int32_t device = 0; device < devices && opened.ok(); ++device) {
      opened = CanOpen(kind, device, flags.gpu_library);
    }
    if (!opened.ok()) {
      refused.push_back({kind, std::string(opened.message())});
    }
  }
  return refused;
}

// Serves checkpoint files; null where that fails: training goes on, and others fetch the files elsewhere.
std::unique_ptr<FileServer> ServeFiles(const Flags& flags) {
  const absl::StatusOr<std::string> ip = DeviceIp(flags.limits.private_network);
  absl::StatusOr<std::unique_ptr<FileServer>> server =
      ip.ok() ? FileServer::Start({.ip = *ip, .ports = flags.limits.ports}) : ip.status();
  if (!server.ok()) {
    LogWarning("no checkpoint files are served to other nodes: {}", std::string(server.status().message()));
    return nullptr;
  }
  return *std::move(server);
}

WorkerControlOptions ControlOptions(const Flags& flags, const FileServer* files) {
  WorkerControlOptions options;
  options.worker.set_site(flags.site);
  options.worker.set_node(flags.node);
  options.worker.set_device(flags.device);
  options.worker.set_job(flags.job);
  options.worker.set_incarnation(flags.incarnation);
  options.version = std::string(Version());
  options.pid = getpid();
  options.orphan_grace_ns = flags.orphan_grace_ns;
  options.seed = RandomId();
  options.exchange_address = files == nullptr ? "" : files->address();
  return options;
}

// The state folder of the agent.
std::string HomeOf(const Flags& flags) {
  const std::string socket = flags.agent.substr(std::string_view("unix:").size());
  return socket.substr(0, std::max<size_t>(1, socket.rfind('/')));
}

// Serves metrics; null where that fails or is not wanted: training goes on without.
std::unique_ptr<MetricsEndpoint> ServeMetrics(const Flags& flags, MetricRegistry& registry) {
  if (flags.metrics.empty()) {
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<MetricsEndpoint>> endpoint =
      MetricsEndpoint::Start({.address = flags.metrics, .address_file = flags.metrics_address_file}, registry);
  if (!endpoint.ok()) {
    LogWarning("{}", std::string(endpoint.status().message()));
    return nullptr;
  }
  LogInfo("metrics at http://{}/metrics", (*endpoint)->address());
  return *std::move(endpoint);
}

// Null where there is no such memory or it is unusable: training goes on without.
std::unique_ptr<KeptStates> OpenKeptMemory(const Flags& flags) {
  if (!flags.kept_memory_fd.has_value()) {
    return nullptr;
  }
  absl::StatusOr<KeptStates> kept = KeptStates::Open(UniqueFd(static_cast<int>(*flags.kept_memory_fd)));
  if (!kept.ok()) {
    LogWarning("no state is kept in memory that outlives this process: {}", std::string(kept.status().message()));
    return nullptr;
  }
  return std::make_unique<KeptStates>(*std::move(kept));
}

// Ends this process by `signal`, so that its parent sees what ended it.
[[noreturn]] void DieBy(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  raise(signal);
  std::_Exit(1);
}

// Runs until the worker is stopped, fails, or is left alone, and ends the process: with its exit code, or by the signal
// of another process that ended it.
[[noreturn]] void RunWorker(const Flags& flags, ShutdownSignal& shutdown) {
  Clock& clock = Clock::Real();
  WorkerCore* worker = nullptr;  // set before the first dial
  std::atomic<int> exit_code = 0;
  MetricRegistry registry(MetricLabels{{"training_job", flags.job},
                                       {"site", flags.site},
                                       {"node", flags.node},
                                       {"device", std::to_string(flags.device)}});
  WorkerMetrics metrics(registry);
  UcxEndpoint endpoint(flags.limits, [] { PreferQuickWakeup(); });
  AgentStream stream(flags.agent, [&](WorkerEvent event) { worker->Post(std::move(event)); });
  const auto open_profile = [&](UcxTransportOptions options) {
    options.limits = flags.limits;
    options.on_thread = [] { PreferQuickWakeup(); };
    return UcxTransport::Create(std::move(options));
  };
  const std::unique_ptr<FileServer> files = ServeFiles(flags);
  bool has_words = false;  // that may be on their way to the agent
  auto core = std::make_unique<WorkerCore>(
      WorkerIdentity{.site = flags.site, .node = flags.node, .device = flags.device},
      ControlOptions(flags, files.get()), clock,
      WorkerCore::Hooks{
          .dial = [&](DialAgent order) { stream.Dial(std::move(order)); },
          .hang_up = [&](AgentStreamId id) { stream.HangUp(id); },
          .send = [&](TellAgent order) { stream.Send(std::move(order)); },
          .has_home = [home = HomeOf(flags)] { return access(home.c_str(), F_OK) == 0 || errno != ENOENT; },
          .on_iteration = [&](int32_t rank, const IterationStats& stats) { metrics.OnIteration(rank, stats); },
          .on_epoch = [&](uint64_t epoch) { SetProcessLogContext(LogContextOf(flags, epoch)); },
          .on_exit =
              [&](const ExitWorker& exit) {
                exit_code = exit.code;
                has_words = exit.has_words;
                shutdown.Request();
              },
          .open_transport = [&](UcxTransportOptions options) { return endpoint.Open(std::move(options)); },
          .open_profile = open_profile,
          .extend_job = RehearseJob,
          .file_server = files.get(),
          .pace_exchange = RehearseExchange,
          .gpu_library = flags.gpu_library},
      OpenKeptMemory(flags));
  worker = core.get();
  registry.OnScrape([&] { metrics.Refresh(core->usage()); });
  std::unique_ptr<MetricsEndpoint> scraped = ServeMetrics(flags, registry);
  core->Start();
  ShutdownSignal::Received received;
  while ((received = shutdown.WaitForSignal(kLongNs)).signal == 0) {
  }
  core->Stop("the worker was told to end");
  const bool exited = core->WaitExit(kExitLimitNs);
  scraped.reset();
  const bool ended = core->WaitEnded(kStopGraceNs);
  if (exited && has_words) {
    stream.Close(kFlushNs);
  }
  if (exited && ended && exit_code == 0) {
    stream.Close(0);
    core.reset();  // says goodbye to the peers
  }
  if (!received.requested && exit_code == 0) {
    DieBy(received.signal);
  }
  // The end of the process ends the rest: arithmetic, which cannot be interrupted and is of no use any more; in a
  // worker that fails, connections to peers that may be gone; and UCX's threads, which crash if a listener is closed
  // while somebody dials it.
  std::_Exit(exit_code);
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("geopipe-worker", "Drives one device: profiles, prepares and trains what its agent passes on.");
  if (const absl::Status status = ParseFlags(argc, argv, set, flags); !status.ok()) {
    PrintErr("geopipe-worker: {}\n", std::string(status.message()));
    return 2;
  }
  if (set.help_requested()) {
    PrintOut("{}", set.Help(TerminalColumns()));
    return 0;
  }
  if (flags.version) {
    PrintOut("geopipe-worker {}\n", Version());
    return 0;
  }
  if (flags.backends) {
    PrintOut("{}", WriteBackends(RefusedHere(flags)));
    return 0;
  }
  const absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  const absl::StatusOr<LogFormat> format = ParseLogFormat(flags.log_format);
  if (!level.ok() || !format.ok()) {
    PrintErr("geopipe-worker: {}\n", std::string((level.ok() ? format.status() : level.status()).message()));
    return 2;
  }
  InitLogging({.program = "geopipe-worker", .level = *level, .format = *format});
  NameThisThread("geopipe-worker");  // Linux before 6.14 names a program by the descriptor that it was executed from
  if (!flags.probe_fd.has_value()) {
    SetProcessLogContext(LogContextOf(flags, std::nullopt));
  }
  absl::Status status = flags.die_with_parent ? DieWithParent(SIGKILL) : absl::OkStatus();
  auto shutdown = ShutdownSignal::Install();
  status.Update(shutdown.status());
  if (!status.ok()) {
    LogError("{}", std::string(status.message()));
    return 1;
  }
  if (flags.probe_fd.has_value()) {
    return ServeProbe(static_cast<int>(*flags.probe_fd),
                      {.limits = flags.limits, .pacer_path = flags.probe_pacer, .near = flags.probe_near});
  }
  if (flags.limits.private_network.has_value()) {
    LogWarning("activations and gradients leave this host in clear, within {}", flags.private_network);
  }
  RunWorker(flags, **shutdown);
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  geopipe::PrepareStandardStreams();
  geopipe::EndWhereResourcesEnd("geopipe-worker");
  return geopipe::ExitCodeAfterOutput("geopipe-worker", geopipe::Main(argc, argv));
}
