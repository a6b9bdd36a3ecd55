// geopipe-agent: one per node. See config.h for its configuration.
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "agent/config.h"
#include "agent/keeper.h"
#include "agent/kept/keeper_table.h"
#include "agent/runner.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/flags.h"
#include "runtime/base/grpc/process_limits.h"
#include "runtime/base/host_memory.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"
#include "runtime/base/process.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/terminal.h"
#include "runtime/base/version.h"

namespace geopipe::agent {
namespace {

struct Flags {
  std::string config;
  std::optional<std::string> keeper;
  int64_t leave_grace_ns = AgentConfig().leave_grace_ns;
  std::vector<std::string> settings;
  std::optional<int64_t> ready_fd;
  bool die_with_parent = false;
  std::string gpu_library;
  std::optional<std::string> log_format;
  std::optional<std::string> log_level;
  bool version = false;
};

// The parent of a node's workers, which outlives agents.
absl::Status Keep(const Flags& flags) {
  LogOptions log{.program = "geopipe-keeper"};
  if (flags.log_level.has_value()) {
    GP_ASSIGN_OR_RETURN(log.level, ParseLogLevel(*flags.log_level));
  }
  if (flags.log_format.has_value()) {
    GP_ASSIGN_OR_RETURN(log.format, ParseLogFormat(*flags.log_format));
  }
  InitLogging(log);
  return RunKeeper(
      {.state_dir = *flags.keeper, .die_with_parent = flags.die_with_parent, .leave_grace_ns = flags.leave_grace_ns});
}

// Rehearsals declare devices that are not there; what computes here needs the memory of this host.
void WarnOfHost(const AgentConfig& config) {
  const int64_t host_bytes = HostMemoryBytes();
  if (config.device.kind != kGpuDevice && host_bytes > 0 && config.device.memory_bytes > host_bytes / config.devices) {
    LogWarning(
        "devices.count {} and devices.memory {} are more than this host's {} of memory; workers that compute here "
        "cannot use it all",
        config.devices, FormatBytes(config.device.memory_bytes), HumanBytes(host_bytes));
  }
  if (const absl::Status table = CheckKeeperTable(config.state_dir); !table.ok()) {
    LogWarning("{}", std::string(table.message()));
  }
}

absl::Status Serve(const Flags& flags) {
  if (flags.ready_fd.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        fmt::format("--ready-fd {}: it must be the number of an open descriptor, like 3", *flags.ready_fd));
  }
  GP_RETURN_IF_ERROR(EnoughDescriptors());
  GP_ASSIGN_OR_RETURN(AgentConfig config, ReadAgentConfig(flags.config, flags.settings));
  if (flags.log_level.has_value()) {
    GP_ASSIGN_OR_RETURN(config.log_level, ParseLogLevel(*flags.log_level));
  }
  if (flags.log_format.has_value()) {
    GP_ASSIGN_OR_RETURN(config.log_format, ParseLogFormat(*flags.log_format));
  }
  config.gpu_library = flags.gpu_library;
  InitLogging({.program = "geopipe-agent", .level = config.log_level, .format = config.log_format});
  config.die_with_parent = config.die_with_parent || flags.die_with_parent;
  if (config.die_with_parent) {
    GP_RETURN_IF_ERROR(DieWithParent(SIGTERM));
  }
  LogContext context;
  context.site = config.site;
  SetProcessLogContext(context);
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ShutdownSignal> signals, ShutdownSignal::Install());
  const auto on_registered = [&flags] {
    if (flags.ready_fd.has_value()) {
      const absl::Status status = NotifyReady(static_cast<int>(*flags.ready_fd), "registered");
      if (!status.ok()) {
        LogWarning("{}", std::string(status.message()));
      }
    }
  };
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<AgentRunner> runner, AgentRunner::Create(config, on_registered));
  WarnOfHost(config);
  if (config.ucx_allow_unprotected) {
    LogWarning(
        "the workers' activations and gradients may leave this host in clear, through {} within {} "
        "(ucx.allow_unprotected)",
        config.ucx_net_devices, config.ucx_private_network);
  }
  LogInfo("agent {}/{} with {} devices; coordinator {}; state in {}", config.site, config.node, config.devices,
          config.coordinator, config.state_dir);
  if (!runner->metrics_address().empty()) {
    LogInfo("metrics at http://{}/metrics", runner->metrics_address());
  }
  std::thread signal_thread([&] {
    for (int signal = signals->Wait(-1); signal != 0; signal = signals->Wait(-1)) {
      if (!runner->RequestShutdown(signal == SIGINT ? "SIGINT" : "SIGTERM")) {
        return;  // the core has ended, and this was only to wake the thread
      }
    }
  });
  absl::Status status = runner->Run();
  runner->Stop();
  signals->Request();
  signal_thread.join();
  return status;
}

int Main(int argc, const char* const* argv) {
  Flags values;
  FlagSet flags("geopipe-agent", "Registers the devices of one node and looks after their workers.");
  flags.AddPath("config", &values.config, "FILE", "Configuration file.");
  flags.Add("keeper", &values.keeper, "DIR",
            "Be the parent of the workers of this state folder; agents start it themselves.");
  flags.AddDuration("leave-grace", &values.leave_grace_ns, "Of a keeper: from SIGTERM to the end of its workers.");
  flags.Add("set", &values.settings, "KEY=VALUE", "Overrides one key of the configuration; may be repeated.");
  flags.Add("ready-fd", &values.ready_fd, "N",
            "Write 'registered' to this descriptor when the coordinator has said welcome.");
  flags.Add("die-with-parent", &values.die_with_parent, "End, with the workers, when the parent process ends.");
  flags.AddPath("gpu-library", &values.gpu_library, "FILE",
                "Tests: the library that the workers reach GPUs through, in the place of the installed one.");
  flags.Add("log-format", &values.log_format, "text|json", "How log lines are written.");
  flags.Add("log-level", &values.log_level, "LEVEL", "debug, info, warning or error.");
  flags.Add("version", &values.version, "Print the version and exit.");
  absl::Status status = flags.Parse(argc - 1, argv + 1);
  if (status.ok() && flags.help_requested()) {
    PrintOut("{}\nConfiguration:\n{}", flags.Help(TerminalColumns()), AgentConfigSchema().Reference(TextColumns()));
    return 0;
  }
  if (status.ok() && values.version) {
    PrintOut("geopipe-agent {}\n", Version());
    return 0;
  }
  if (status.ok()) {
    status = values.keeper.has_value() ? Keep(values) : Serve(values);
  }
  if (!status.ok()) {
    PrintErr("geopipe-agent: {}\n", std::string(status.message()));
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  return 0;
}

}  // namespace
}  // namespace geopipe::agent

int main(int argc, char** argv) {
  geopipe::PrepareStandardStreams();
  geopipe::EndWhereResourcesEnd("geopipe-agent");
  return geopipe::ExitCodeAfterOutput("geopipe-agent", geopipe::agent::Main(argc, argv));
}
