// State that the store gives a coordinator at its start, made durable by its earlier lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "geopipe/v1/cluster.pb.h"
#include "geopipe/v1/control_service.pb.h"
#include "geopipe/v1/job_record.pb.h"
#include "geopipe/v1/telemetry.pb.h"

namespace geopipe {

struct StoredJob {
  v1::JobDetail detail;
  v1::JobRecord record;
  int64_t next_iteration = 0;                    // all below are complete
  std::vector<v1::IterationSummary> iterations;  // of a live job: the latest, without a gap, up to next_iteration
  std::vector<v1::IterationReport> partial;      // of iterations from there on
  bool damaged = false;                          // its row cannot be read; `detail` has what is known
};

struct StoredLink {
  std::string from_site;
  std::string to_site;
  v1::LinkMeasurement value;
  bool from_traffic = false;
  int64_t unix_time_ns = 0;  // of the latest measurement
};

struct StoredState {
  std::vector<StoredJob> jobs;  // in order of submission
  std::vector<StoredLink> links;
  std::vector<std::string> drained_sites;
  std::string federation = {};  // a name that no other store has; empty: not known
};

// Reports of a job's ranks since it was last stored.
struct JobProgress {
  std::string job;
  std::vector<v1::IterationSummary> finished;  // in order
  std::vector<v1::IterationReport> partial;    // of iterations that are not complete
  // The run begins here: iterations that are stored from there on are of no run any more, nor are those before it that
  // do not reach up to it.
  std::optional<int64_t> begins_at = std::nullopt;
  // Replaces those that are stored; nullopt: they stay.
  std::optional<std::vector<v1::IterationTimeline>> timelines = std::nullopt;

  bool empty() const { return finished.empty() && partial.empty() && !begins_at.has_value() && !timelines.has_value(); }
};

}  // namespace geopipe
