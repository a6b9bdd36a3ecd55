// Flags of a submission (RunOptions), shared by apply and playground.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>

#include "optimizer/model/job_spec.h"
#include "optimizer/model/run_options.h"
#include "runtime/base/flags.h"

namespace geopipe {

struct RunFlags {
  std::string schedule;
  std::string comm = "nonblocking";
  std::string delta_n;
  std::string schedule_csv;
  std::string backend = "cpu";
  std::string case_path;
  bool pace = false;
  bool resume = false;
  int64_t iterations = 0;

  void Register(FlagSet& flags);

  // Reads the case file and the schedule when they are named. InvalidArgument names the flag.
  absl::StatusOr<RunOptions> Resolve() const;
  // Gives the job at `job_path` the pipeline of the schedule in `run`, if there is one. Errors name the job file.
  static absl::StatusOr<JobSpec> WithSchedule(const RunOptions& run, const std::string& job_path, JobSpec job);
};

}  // namespace geopipe
