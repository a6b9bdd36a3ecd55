// The configuration of geopipe-coordinator: one YAML file (--config), the environment over it (GEOPIPE_COORDINATOR_ and
// the key's path in capitals: GEOPIPE_COORDINATOR_HEARTBEAT_INTERVAL), flags over both. Keys that are not listed here
// are errors.
//
//   listen: 127.0.0.1:7070          # port 0: any free one
//   metrics: 127.0.0.1:9464         # Prometheus scrapes it; port 0: any free one; empty: none
//   state_dir: /var/lib/geopipe     # holds jobs.sqlite; made if missing
//   heartbeat: {interval: 500ms, suspect_after: 2s, failed_after: 5s}
//   timeouts: {start: 60s, profile: 300s, prepare: 60s, commit: 30s, progress: 600s, failure_grace: 1s, stop_grace: 3s}
//   probe_interval: 60s             # 0: links are not probed
//   limits: {agents: 1024, jobs: 1000, watches: 256, inbox: 4096}
//   log: {level: info, format: text}
//   die_with_parent: false
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/core/coordinator.h"
#include "runtime/base/log.h"
#include "runtime/base/schema.h"

namespace geopipe {

struct CoordinatorConfig {
  std::string listen = "127.0.0.1:0";
  std::string metrics;  // address to be scraped at; empty: none
  std::string state_dir;
  int64_t heartbeat_interval_ns = 500'000'000;
  MembershipLimits membership;
  JobRunLimits run;
  int64_t probe_interval_ns = LinkProbingOptions().interval_ns;
  int64_t max_agents = 1024;
  int64_t max_jobs = 1000;
  int64_t max_watches = 256;
  int64_t inbox_events = 4096;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  bool die_with_parent = false;
};

const Schema<CoordinatorConfig>& CoordinatorConfigSchema();

// Ranges, and rules that span keys. InvalidArgument names the key, and its place in `document` (the file that `config`
// was read from; one without a root when there was none).
absl::Status ValidateConfig(const CoordinatorConfig& config, const YamlDocument& document = {});

}  // namespace geopipe
