// geopipe-coordinator: keeps the jobs, plans them and rolls their plans out to the agents.
#include <fmt/format.h>
#include <signal.h>

#include <optional>
#include <string>

#include "coordinator/config.h"
#include "coordinator/job_store_backup.h"
#include "coordinator/server.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/config/environment.h"
#include "runtime/base/flags.h"
#include "runtime/base/grpc/process_limits.h"
#include "runtime/base/home_path.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"
#include "runtime/base/process.h"
#include "runtime/base/shutdown.h"
#include "runtime/base/system_time.h"
#include "runtime/base/terminal.h"
#include "runtime/base/version.h"

namespace geopipe {
namespace {

constexpr std::string_view kProgram = "geopipe-coordinator";
constexpr std::string_view kEnvironmentPrefix = "GEOPIPE_COORDINATOR_";

struct CommandLine {
  std::string config_path;
  std::optional<std::string> listen;
  std::optional<std::string> metrics;
  std::optional<std::string> state_dir;
  std::string restore;
  std::optional<std::string> log_level;
  std::optional<std::string> log_format;
  std::optional<int64_t> ready_fd;
  bool die_with_parent = false;
  bool version = false;
};

FlagSet Flags(CommandLine* line) {
  FlagSet flags(std::string(kProgram), "Keeps training jobs, plans them and rolls their plans out to the agents.");
  flags.AddPath("config", &line->config_path, "FILE", "Configuration file.");
  flags.Add("listen", &line->listen, "HOST:PORT", "Loopback address to listen on; port 0 takes any free one.");
  flags.Add("metrics", &line->metrics, "HOST:PORT", "Loopback address to be scraped at by Prometheus.");
  flags.Add("state-dir", &line->state_dir, "FOLDER", "Folder of the job store.");
  flags.AddPath("restore", &line->restore, "FILE",
                "Put a backup (geopipectl backup) in the place of the job store, which is moved aside, and exit.");
  flags.Add("log-level", &line->log_level, "LEVEL", "debug, info, warning or error.");
  flags.Add("log-format", &line->log_format, "FORMAT", "text or json.");
  flags.Add("ready-fd", &line->ready_fd, "N", "Write the endpoint to this file descriptor when ready.");
  flags.Add("die-with-parent", &line->die_with_parent, "End when the process that started this one ends.");
  flags.Add("version", &line->version, "Print the version.");
  return flags;
}

// File, then environment, then flags.
absl::StatusOr<CoordinatorConfig> ReadConfig(const CommandLine& line) {
  if (line.ready_fd.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        fmt::format("--ready-fd {}: it must be the number of an open descriptor, like 3", *line.ready_fd));
  }
  CoordinatorConfig config;
  const Schema<CoordinatorConfig>& schema = CoordinatorConfigSchema();
  YamlDocument document;
  if (!line.config_path.empty()) {
    GP_ASSIGN_OR_RETURN(document, ReadYaml(line.config_path));
    GP_RETURN_IF_ERROR(schema.Overlay(document, &config));
  }
  GP_RETURN_IF_ERROR(CheckEnvironmentNames(kEnvironmentPrefix, schema.KeyPaths()));
  GP_RETURN_IF_ERROR(schema.OverlayEnvironment(kEnvironmentPrefix, &config));
  config.listen = line.listen.value_or(config.listen);
  config.metrics = line.metrics.value_or(config.metrics);
  config.state_dir = line.state_dir.value_or(config.state_dir);
  if (line.state_dir.has_value()) {
    GP_RETURN_IF_ERROR(RefuseHome(*line.state_dir));
  }
  config.die_with_parent = config.die_with_parent || line.die_with_parent;
  if (line.log_level.has_value()) {
    GP_ASSIGN_OR_RETURN(config.log_level, ParseLogLevel(*line.log_level));
  }
  if (line.log_format.has_value()) {
    GP_ASSIGN_OR_RETURN(config.log_format, ParseLogFormat(*line.log_format));
  }
  GP_RETURN_IF_ERROR(ValidateConfig(config, document));
  GP_RETURN_IF_ERROR(CheckSystemTime(Clock::Real().UnixNowNs()));
  return config;
}

absl::Status Serve(const CoordinatorConfig& config, std::optional<int64_t> ready_fd) {
  GP_RETURN_IF_ERROR(EnoughDescriptors());
  if (config.die_with_parent) {
    GP_RETURN_IF_ERROR(DieWithParent(SIGTERM));
  }
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<ShutdownSignal> shutdown, ShutdownSignal::Install());
  GP_ASSIGN_OR_RETURN(
      const std::unique_ptr<CoordinatorServer> server,
      CoordinatorServer::Start(config, Clock::Real(), {.plan = {}, .on_fatal = [&] { shutdown->Request(); }}));
  LogInfo("listening on {}, state in {}, version {}", server->endpoint(), config.state_dir, Version());
  if (!server->metrics_address().empty()) {
    LogInfo("metrics at http://{}/metrics", server->metrics_address());
  }
  if (ready_fd.has_value()) {
    GP_RETURN_IF_ERROR(NotifyReady(static_cast<int>(*ready_fd), server->endpoint()));
  }
  const ShutdownSignal::Received received = shutdown->WaitForSignal(-1);
  if (received.requested) {
    LogError("shutting down after a fatal error");  // the status says why
  } else {
    LogInfo("stopping ({})", received.signal == SIGINT ? "SIGINT" : "SIGTERM");
  }
  return server->Stop();
}

int Main(int argc, char** argv) {
  CommandLine line;
  FlagSet flags = Flags(&line);
  if (const absl::Status status = flags.Parse(argc - 1, argv + 1); !status.ok()) {
    PrintErr("{}: {}\n", kProgram, std::string(status.message()));
    return 2;
  }
  if (flags.help_requested()) {
    PrintOut("{}\nConfiguration keys:\n{}", flags.Help(TerminalColumns()),
             CoordinatorConfigSchema().Reference(TextColumns()));
    return 0;
  }
  if (line.version) {
    PrintOut("{} {}\n", kProgram, Version());
    return 0;
  }
  const absl::StatusOr<CoordinatorConfig> config = ReadConfig(line);
  if (!config.ok()) {
    PrintErr("{}: {}\n", kProgram, std::string(config.status().message()));
    return 2;
  }
  if (!line.restore.empty()) {
    const std::string path = config->state_dir + "/jobs.sqlite";
    const absl::StatusOr<std::string> aside = RestoreJobStore(line.restore, path, Clock::Real().UnixNowNs());
    if (!aside.ok()) {
      PrintErr("{}: {}\n", kProgram, std::string(aside.status().message()));
      return 1;
    }
    PrintOut("{} is restored from {}{}\n", path, line.restore,
             aside->empty() ? "" : fmt::format("; what was there is {}", *aside));
    return 0;
  }
  InitLogging({.program = std::string(kProgram), .level = config->log_level, .format = config->log_format});
  if (const absl::Status status = Serve(*config, line.ready_fd); !status.ok()) {
    PrintErr("{}: {}\n", kProgram, std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  geopipe::PrepareStandardStreams();
  geopipe::EndWhereResourcesEnd("geopipe-coordinator");
  return geopipe::ExitCodeAfterOutput(geopipe::kProgram, geopipe::Main(argc, argv));
}
