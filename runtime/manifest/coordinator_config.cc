#include "runtime/manifest/coordinator_config.h"

#include "runtime/manifest/daemon_schema.h"

namespace geopipe {
namespace {

constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
constexpr int64_t kMaxSilenceNs = kHourNs;
constexpr int64_t kMaxTimeoutNs = 24 * kHourNs;
constexpr int64_t kMaxRestNs = 30 * 24 * kHourNs;
constexpr int64_t kMaxAgents = 65'536;
constexpr int64_t kMaxJobs = 1'000'000;
constexpr int64_t kMaxWatches = 65'536;
constexpr int64_t kMaxInboxEvents = int64_t{1} << 20;
constexpr int64_t kMaxRestartsPerHour = 10'000;

ValueType<int64_t> UpTo(int64_t max_ns) { return From<int64_t>(0, max_ns, DurationValue()); }
ValueType<int64_t> SomeUpTo(int64_t max_ns) { return From<int64_t>(1, max_ns, DurationValue()); }

Schema<MembershipLimits> MembershipSchema() {
  using M = MembershipLimits;
  return Schema<M>()
      .Key("suspect_after", UpTo(kMaxSilenceNs), &M::suspect_after_ns, "Silence after which an agent is suspect.")
      .Key("failed_after", UpTo(kMaxSilenceNs), &M::failed_after_ns,
           "Silence after which an agent and its workers have failed.");
}

Schema<JobRunLimits> TimeoutsSchema() {
  using R = JobRunLimits;
  return Schema<R>()
      .Key("start", SomeUpTo(kMaxTimeoutNs), &R::start_timeout_ns, "Time for all workers of a job to start.")
      .Key(
          "start_trouble", SomeUpTo(kMaxTimeoutNs), &R::start_trouble_ns,
          "Time without an iteration after which a job fails because its nodes were in trouble each time it was tried.")
      .Key("profile", SomeUpTo(kMaxTimeoutNs), &R::profile_timeout_ns, "Time for one round of measurements.")
      .Key("prepare", SomeUpTo(kMaxTimeoutNs), &R::prepare_timeout_ns, "Time for all ranks to prepare a plan.")
      .Key("commit", SomeUpTo(kMaxTimeoutNs), &R::commit_timeout_ns, "Time for all ranks to commit a plan.")
      .Key("progress", SomeUpTo(kMaxTimeoutNs), &R::progress_timeout_ns,
           "Time between two finished iterations; ten predicted ones if that is more.")
      .Key("stuck", SomeUpTo(kMaxTimeoutNs), &R::stuck_after_ns,
           "Time for one compute action, ten planned ones if that is more; a slower worker is stuck.")
      .Key("failure_grace", UpTo(kMaxTimeoutNs), &R::failure_grace_ns,
           "Time for the cause of a broken connection to show.")
      .Key("stop_grace", UpTo(kMaxTimeoutNs), &R::stop_grace_ns, "Time from a worker's polite stop to its SIGKILL.")
      .Key("rest", SomeUpTo(kMaxRestNs), &R::rest_ns,
           "Time that workers of a job that is paused or has done its last iteration keep their state without an "
           "agent.");
}

Schema<CoordinatorConfig> LimitsSchema() {
  return Schema<CoordinatorConfig>()
      .Key("agents", From<int64_t>(1, kMaxAgents, IntegerValue()), &CoordinatorConfig::max_agents,
           "Agents that may register.")
      .Key("jobs", From<int64_t>(1, kMaxJobs, IntegerValue()), &CoordinatorConfig::max_jobs,
           "Jobs kept; the oldest finished one is forgotten.")
      .Key("finished_jobs", From<int64_t>(1, kMaxJobs, IntegerValue()), &CoordinatorConfig::max_finished_jobs,
           "Finished ones of them; the oldest is forgotten when a job is submitted.")
      .Key("watches", From<int64_t>(1, kMaxWatches, IntegerValue()), &CoordinatorConfig::max_watches,
           "Watches open at once.")
      .Key("inbox", From<int64_t>(1, kMaxInboxEvents, IntegerValue()), &CoordinatorConfig::inbox_events,
           "Events that may wait for the core.")
      .Key<int64_t>(
          "restarts_per_hour", From<int64_t>(0, kMaxRestartsPerHour, IntegerValue()),
          [](const CoordinatorConfig& config) { return config.run.restarts_per_hour; },
          [](CoordinatorConfig* config, int64_t value) { config->run.restarts_per_hour = value; },
          "Restarts of one worker within an hour; its job fails with the next loss.");
}

}  // namespace

const Schema<CoordinatorConfig>& CoordinatorConfigSchema() {
  static const auto& schema = *new Schema<CoordinatorConfig>(
      Schema<CoordinatorConfig>()
          .Key("listen", StringValue(), &CoordinatorConfig::listen,
               "Loopback address and port to listen on; port 0 takes any free one.")
          .Key("metrics", StringValue(), &CoordinatorConfig::metrics,
               "Loopback address and port that Prometheus scrapes, like 127.0.0.1:9464; none when empty.")
          .Key("state_dir", PathValue(""), &CoordinatorConfig::state_dir, "Folder of jobs.sqlite; made if missing.",
               Need::kRequired)
          .Group("heartbeat",
                 Schema<CoordinatorConfig>()
                     .Key("interval", SomeUpTo(kMaxSilenceNs), &CoordinatorConfig::heartbeat_interval_ns,
                          "Time between heartbeats of an agent.")
                     .Embed(MembershipSchema(), &CoordinatorConfig::membership),
                 "Liveness of agents.")
          .Map("timeouts", TimeoutsSchema(), &CoordinatorConfig::run, "Limits on each part of a job's life.")
          .Key("probe_interval", UpTo(kMaxTimeoutNs), &CoordinatorConfig::probe_interval_ns,
               "Time from one probe of an idle link to the next; 0: links are not probed, and declarations count.")
          .Group("limits", LimitsSchema(), "Bounds.")
          .Group("log", LogSchema(&CoordinatorConfig::log_level, &CoordinatorConfig::log_format),
                 "Log on standard error.")
          .Key("die_with_parent", BooleanValue(), &CoordinatorConfig::die_with_parent,
               "End when the process that started the coordinator ends."));
  return schema;
}

}  // namespace geopipe
