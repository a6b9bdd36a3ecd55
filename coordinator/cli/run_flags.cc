#include "coordinator/cli/run_flags.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/cli/schedule_file.h"
#include "coordinator/cli/verb.h"
#include "coordinator/spec/case_file.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/plan/given_schedule.h"
#include "optimizer/schedule/csv.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {

void RunFlags::Register(FlagSet& flags) {
  flags.Add("iterations", &iterations, "N", "Stop after N iterations; 0: the job's own count.");
  flags.Add("schedule", &schedule, "NAME", fmt::format("Overrides the job's search.schedule: {}.", ScheduleNames()));
  flags.Add("delta-n", &delta_n, "N[,N…]", "Fix ΔN (one for all crossings, or one for each) instead of searching it.");
  flags.AddPath("schedule-csv", &schedule_csv, "FILE",
                "Run exactly this schedule, a row for each pipeline rank, as PyTorch and --export-csv write it.");
  flags.Add("comm", &comm, "MODE", "nonblocking, or blocking to compare with.");
  flags.Add("backend", &backend, "NAME",
            "cpu, cuda, or modelled: no arithmetic, the modelled time and true message sizes.");
  flags.Add(
      "pace", &pace,
      "Let every action take as long as the plan's costs say, with real arithmetic inside. The costs are those of "
      "--case, or of the devices that a topology or the agents describe; else they are measured.");
  flags.Add("resume", &resume, "Go on from the newest checkpoint below the job's checkpoint.path.");
  flags.AddPath("case", &case_path, "FILE", "Explicit costs ('geopipectl explain case') for paced and modelled runs.");
}

absl::StatusOr<RunOptions> RunFlags::Resolve() const {
  RunOptions run;
  if (!schedule_csv.empty() && (!schedule.empty() || !delta_n.empty())) {
    return absl::InvalidArgumentError(fmt::format(
        "--{} cannot be combined with --schedule-csv, which gives the whole schedule; leave one of them out",
        schedule.empty() ? "delta-n" : "schedule"));
  }
  if (!schedule_csv.empty()) {
    GP_ASSIGN_OR_RETURN(const Schedule given, ReadScheduleFile(schedule_csv));
    run.schedule_csv = ToCsv(given);
  }
  if (!schedule.empty()) {
    GP_ASSIGN_OR_RETURN(run.schedule, InFlag("--schedule", ParseScheduleKind(schedule)));
  }
  GP_ASSIGN_OR_RETURN(run.comm, InFlag("--comm", ParseCommMode(comm)));
  if (run.comm == CommMode::kRendezvous) {
    return absl::InvalidArgumentError(
        "--comm rendezvous exists in 'geopipectl simulate' alone: use nonblocking or blocking");
  }
  if (!delta_n.empty()) {
    GP_ASSIGN_OR_RETURN(run.delta_n, InFlag("--delta-n", ParseDeltaN(delta_n)));
    if (run.schedule && !RowOf(*run.schedule).uses_delta_n) {
      return absl::InvalidArgumentError(fmt::format("--delta-n belongs to {}: schedule {} has none",
                                                    ScheduleNames(&ScheduleRow::uses_delta_n), schedule));
    }
    run.schedule = run.schedule.value_or(ScheduleKind::kGeoPipe);
  }
  GP_ASSIGN_OR_RETURN(run.backend, InFlag("--backend", ParseBackendKind(backend)));
  run.pace = pace;
  if (!case_path.empty()) {
    GP_ASSIGN_OR_RETURN(run.explicit_costs, ReadCaseFile(case_path));
    if (!pace && run.backend != BackendKind::kModelled) {
      return absl::InvalidArgumentError(
          "--case gives durations: add --backend modelled, or --pace for real arithmetic");
    }
  }
  if (iterations < 0) {
    return absl::InvalidArgumentError(fmt::format("--iterations {}: give a positive number", iterations));
  }
  run.stop_after_iterations = iterations;
  run.resume = resume;
  return run;
}

absl::StatusOr<JobSpec> RunFlags::WithSchedule(const RunOptions& run, const std::string& job_path, JobSpec job) {
  if (run.schedule_csv.empty()) {
    return job;
  }
  absl::StatusOr<JobSpec> with = JobWithSchedule(std::move(job), run.schedule_csv);
  return with.ok() ? std::move(with) : AttributeToJobFile(job_path, with.status());
}

}  // namespace geopipe
