// The configuration of geopipe-coordinator: one YAML file (--config), the environment over it (GEOPIPE_COORDINATOR_ and
// the key's path in capitals: GEOPIPE_COORDINATOR_HEARTBEAT_INTERVAL), flags over both. Keys that are not listed here
// are errors.
//
//   listen: 127.0.0.1:7070          # port 0: any free one
//   metrics: 127.0.0.1:9464         # Prometheus scrapes it; port 0: any free one; empty: none
//   state_dir: /var/lib/geopipe     # holds jobs.sqlite; made if missing
//   heartbeat: {interval: 500ms, suspect_after: 2s, failed_after: 5s}
//   timeouts: {start: 60s, start_trouble: 15m, profile: 300s, prepare: 60s, commit: 30s, progress: 600s, stuck: 5s,
//     failure_grace: 1s, stop_grace: 3s}
//   probe_interval: 60s             # 0: links are not probed
//   limits: {agents: 1024, jobs: 20000, finished_jobs: 1000, watches: 256, inbox: 4096, restarts_per_hour: 4}
//   log: {level: info, format: text}
//   die_with_parent: false
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/config/schema.h"
#include "runtime/base/log.h"

namespace geopipe {

struct MembershipLimits {
  int64_t suspect_after_ns = 2'000'000'000;
  int64_t failed_after_ns = 5'000'000'000;
  size_t max_agents = 1024;
};

struct JobRunLimits {
  int64_t start_timeout_ns = 60'000'000'000;     // StartWorkers to the last WorkerHello
  int64_t profile_timeout_ns = 300'000'000'000;  // one round
  int64_t planning_margin_ns = 60'000'000'000;   // beyond search.time_budget
  int64_t prepare_timeout_ns = 60'000'000'000;
  int64_t commit_timeout_ns = 30'000'000'000;
  int64_t progress_timeout_ns = 600'000'000'000;  // between two finished iterations; ten predicted ones if that is more
  int64_t stuck_after_ns = 5'000'000'000;         // for one compute action; ten planned ones if that is more
  int64_t failure_grace_ns = 1'000'000'000;       // see FailureDiagnosis
  int64_t stop_grace_ns = 3'000'000'000;          // from a polite stop to SIGKILL
  int64_t restarts_per_hour = 4;                  // of one worker; 0: the loss of one is the job's end
  int64_t start_trouble_ns = 900'000'000'000;     // without an iteration, for want of a fit node, until a job fails
  int64_t rest_ns = 86'400'000'000'000;           // wait of a paused or finished worker for an agent
  size_t max_iterations_kept = 100'000;           // summaries kept for late watchers
  int64_t actions_interval_ns = 500'000'000;      // every action is reported of iterations so far apart, or farther
};

// Default address: where a coordinator listens, and geopipectl looks for one.
inline constexpr std::string_view kDefaultCoordinator = "127.0.0.1:7070";

struct CoordinatorConfig {
  std::string listen{kDefaultCoordinator};
  std::string metrics;  // address to be scraped at; empty: none
  std::string state_dir;
  int64_t heartbeat_interval_ns = 500'000'000;
  MembershipLimits membership;
  JobRunLimits run;
  int64_t probe_interval_ns = 60'000'000'000;
  int64_t max_agents = 1024;
  int64_t max_jobs = 20'000;
  int64_t max_finished_jobs = 1000;
  int64_t max_watches = 256;
  int64_t inbox_events = 4096;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  bool die_with_parent = false;
};

const Schema<CoordinatorConfig>& CoordinatorConfigSchema();

}  // namespace geopipe
