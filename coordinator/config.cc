#include "coordinator/config.h"

#include <fmt/format.h>

#include "optimizer/base/status_macros.h"
#include "runtime/base/listen_address.h"

namespace geopipe {
namespace {

// A duration that lies in a struct within the config.
template <class Part>
void AddDuration(Schema<CoordinatorConfig>& schema, std::string key, Part CoordinatorConfig::*part,
                 int64_t Part::*member, std::string doc) {
  schema.Key<int64_t>(
      std::move(key), DurationValue(), [part, member](const CoordinatorConfig& config) { return config.*part.*member; },
      [part, member](CoordinatorConfig* config, int64_t value) { config->*part.*member = value; }, std::move(doc));
}

Schema<CoordinatorConfig> HeartbeatSchema() {
  Schema<CoordinatorConfig> schema;
  schema.Key("interval", DurationValue(), &CoordinatorConfig::heartbeat_interval_ns,
             "Time between heartbeats of an agent.");
  AddDuration(schema, "suspect_after", &CoordinatorConfig::membership, &MembershipLimits::suspect_after_ns,
              "Silence after which an agent is suspect.");
  AddDuration(schema, "failed_after", &CoordinatorConfig::membership, &MembershipLimits::failed_after_ns,
              "Silence after which an agent and its workers have failed.");
  return schema;
}

Schema<CoordinatorConfig> TimeoutsSchema() {
  Schema<CoordinatorConfig> schema;
  const auto add = [&](std::string key, int64_t JobRunLimits::*member, std::string doc) {
    AddDuration(schema, std::move(key), &CoordinatorConfig::run, member, std::move(doc));
  };
  add("start", &JobRunLimits::start_timeout_ns, "For all workers of a job to start.");
  add("profile", &JobRunLimits::profile_timeout_ns, "For one round of measurements.");
  add("prepare", &JobRunLimits::prepare_timeout_ns, "For all stages to prepare a plan.");
  add("commit", &JobRunLimits::commit_timeout_ns, "For all stages to commit a plan.");
  add("progress", &JobRunLimits::progress_timeout_ns, "Between two finished iterations, or ten predicted ones.");
  add("failure_grace", &JobRunLimits::failure_grace_ns, "How long a broken connection waits for its cause to show.");
  add("stop_grace", &JobRunLimits::stop_grace_ns, "From a worker's polite stop to its SIGKILL.");
  return schema;
}

Schema<CoordinatorConfig> LimitsSchema() {
  return Schema<CoordinatorConfig>()
      .Key("agents", IntegerValue(), &CoordinatorConfig::max_agents, "Agents that may register.")
      .Key("jobs", IntegerValue(), &CoordinatorConfig::max_jobs, "Jobs kept; the oldest finished one is forgotten.")
      .Key("watches", IntegerValue(), &CoordinatorConfig::max_watches, "Watches open at once.")
      .Key("inbox", IntegerValue(), &CoordinatorConfig::inbox_events, "Events that may wait for the core.");
}

Schema<CoordinatorConfig> LogSchema() {
  return Schema<CoordinatorConfig>()
      .Key("level",
           ChoiceValue<LogLevel>({{"debug", LogLevel::kDebug},
                                  {"info", LogLevel::kInfo},
                                  {"warning", LogLevel::kWarning},
                                  {"error", LogLevel::kError}}),
           &CoordinatorConfig::log_level, "Least level that is logged.")
      .Key("format", ChoiceValue<LogFormat>({{"text", LogFormat::kText}, {"json", LogFormat::kJson}}),
           &CoordinatorConfig::log_format, "For people or for programs.");
}

absl::Status RequirePositive(std::string_view key, int64_t value) {
  return value > 0 ? absl::OkStatus()
                   : absl::InvalidArgumentError(fmt::format("{} is {}; it must be positive", key, value));
}

}  // namespace

const Schema<CoordinatorConfig>& CoordinatorConfigSchema() {
  static const auto& schema = *new Schema<CoordinatorConfig>(
      Schema<CoordinatorConfig>()
          .Key("listen", StringValue(), &CoordinatorConfig::listen,
               "Loopback address and port to listen on; port 0 takes any free one.")
          .Key("metrics", StringValue(), &CoordinatorConfig::metrics,
               "Loopback address and port that Prometheus scrapes, like 127.0.0.1:9464; none when empty.")
          .Key("state_dir", StringValue(), &CoordinatorConfig::state_dir, "Folder of jobs.sqlite; made if missing.",
               Need::kRequired)
          .Group("heartbeat", HeartbeatSchema(), "Liveness of agents.")
          .Group("timeouts", TimeoutsSchema(), "How long each part of a job's life may take.")
          .Key("probe_interval", DurationValue(), &CoordinatorConfig::probe_interval_ns,
               "From one probe of an idle link to the next; 0: links are not probed, and what is declared counts.")
          .Group("limits", LimitsSchema(), "Bounds.")
          .Group("log", LogSchema(), "Log on standard error.")
          .Key("die_with_parent", BooleanValue(), &CoordinatorConfig::die_with_parent,
               "End when the process that started the coordinator ends."));
  return schema;
}

absl::Status ValidateConfig(const CoordinatorConfig& config) {
  if (config.state_dir.empty()) {
    return absl::InvalidArgumentError("state_dir is not set; give a folder for the job store (--state-dir)");
  }
  GP_RETURN_IF_ERROR(RequirePositive("heartbeat.interval", config.heartbeat_interval_ns));
  if (config.membership.suspect_after_ns <= config.heartbeat_interval_ns ||
      config.membership.failed_after_ns <= config.membership.suspect_after_ns) {
    return absl::InvalidArgumentError(
        "heartbeat.interval must be less than heartbeat.suspect_after, and that less than heartbeat.failed_after");
  }
  GP_RETURN_IF_ERROR(RequirePositive("limits.agents", config.max_agents));
  GP_RETURN_IF_ERROR(RequirePositive("limits.jobs", config.max_jobs));
  GP_RETURN_IF_ERROR(RequirePositive("limits.watches", config.max_watches));
  GP_RETURN_IF_ERROR(RequirePositive("limits.inbox", config.inbox_events));
  GP_RETURN_IF_ERROR(RequirePositive("timeouts.start", config.run.start_timeout_ns));
  GP_RETURN_IF_ERROR(RequirePositive("timeouts.profile", config.run.profile_timeout_ns));
  GP_RETURN_IF_ERROR(RequirePositive("timeouts.prepare", config.run.prepare_timeout_ns));
  GP_RETURN_IF_ERROR(RequirePositive("timeouts.commit", config.run.commit_timeout_ns));
  GP_RETURN_IF_ERROR(RequirePositive("timeouts.progress", config.run.progress_timeout_ns));
  if (!config.metrics.empty()) {
    GP_RETURN_IF_ERROR(ParseListenAddress("metrics", config.metrics).status());
  }
  return ParseListenAddress("listen", config.listen).status();
}

}  // namespace geopipe
