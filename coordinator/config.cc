#include "coordinator/config.h"

#include <fmt/format.h>

#include <utility>

#include "optimizer/base/quantities.h"
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

// About the value of `key`; with its place, or that of the group it is missing from, when the file gives either.
absl::Status Wrong(const YamlDocument& document, std::string_view key, std::string_view message) {
  const bool in_file = document.root.Find(key.substr(0, key.find('.'))) != nullptr;
  return in_file ? document.Error(document.Locate(key), key, message)
                 : absl::InvalidArgumentError(fmt::format("{} {}", key, message));
}

absl::Status ValidateAddress(const YamlDocument& document, const std::string& key, const std::string& address) {
  const absl::Status status = ParseListenAddress(key, address).status();
  return status.ok() || document.root.Find(key) == nullptr
             ? status
             : document.Error(document.Locate(key), "", std::string(status.message()));
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

absl::Status ValidateConfig(const CoordinatorConfig& config, const YamlDocument& document) {
  if (config.state_dir.empty()) {
    return absl::InvalidArgumentError("state_dir is not set; give a folder for the job store (--state-dir)");
  }
  const std::pair<std::string_view, int64_t> positive[] = {{"heartbeat.interval", config.heartbeat_interval_ns},
                                                           {"limits.agents", config.max_agents},
                                                           {"limits.jobs", config.max_jobs},
                                                           {"limits.watches", config.max_watches},
                                                           {"limits.inbox", config.inbox_events},
                                                           {"timeouts.start", config.run.start_timeout_ns},
                                                           {"timeouts.profile", config.run.profile_timeout_ns},
                                                           {"timeouts.prepare", config.run.prepare_timeout_ns},
                                                           {"timeouts.commit", config.run.commit_timeout_ns},
                                                           {"timeouts.progress", config.run.progress_timeout_ns}};
  for (const auto& [key, value] : positive) {
    if (value <= 0) {
      return Wrong(document, key, fmt::format("is {}; it must be positive", value));
    }
  }
  const int64_t suspect_ns = config.membership.suspect_after_ns;
  if (suspect_ns <= config.heartbeat_interval_ns) {
    return Wrong(document, "heartbeat.suspect_after",
                 fmt::format("is {}; it must be longer than heartbeat.interval, which is {}",
                             FormatDuration(suspect_ns), FormatDuration(config.heartbeat_interval_ns)));
  }
  if (config.membership.failed_after_ns <= suspect_ns) {
    return Wrong(document, "heartbeat.failed_after",
                 fmt::format("is {}; it must be longer than heartbeat.suspect_after, which is {}",
                             FormatDuration(config.membership.failed_after_ns), FormatDuration(suspect_ns)));
  }
  if (!config.metrics.empty()) {
    GP_RETURN_IF_ERROR(ValidateAddress(document, "metrics", config.metrics));
  }
  return ValidateAddress(document, "listen", config.listen);
}

}  // namespace geopipe
