// A playground's job from its submission to its end: its own, that of a signal, or one that the playground makes
// because nothing comes of it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/playground/playground_cluster.h"
#include "coordinator/cli/run_report.h"
#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "runtime/base/shutdown.h"

namespace geopipe {

struct CourseLimits {
  // With a checkpoint.path: how long a first signal leaves the job to write a last checkpoint.
  int64_t grace_ns = 30'000'000'000;
  // Time that the job may wait for its last state to be written, when training is over.
  int64_t patience_ns = 300'000'000'000;
};

struct Outcome {
  RunReport report;
  int signal = 0;              // that ended it; 0: none
  absl::Status given_up = {};  // why the playground has ended it; with an exit code
  absl::Status saved = {};     // what the run leaves: the first file that could not be written

  bool completed() const { return report.detail.summary().state() == v1::JOB_STATE_COMPLETED; }
};

struct Course {
  const JobSpec& job;
  const RunOptions& run;
  PlaygroundCluster& cluster;
  ShutdownSignal& shutdown;
  std::FILE* lines;  // where what happens is told
  CourseLimits limits;
  // Command that resumes the job from its newest checkpoint; empty: there is none.
  std::string resume_command;
};

// Waits for the end of the job, which was submitted, of a process, or for a signal: the first one ends it with a
// checkpoint where it has a path for one, the second at once. Says on standard error what is saved then, and how to go
// on. Errors: a process has ended, or the coordinator does not answer.
absl::StatusOr<Outcome> FollowCourse(ControlClient& client, const Course& course);

}  // namespace geopipe
