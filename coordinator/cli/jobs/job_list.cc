#include "coordinator/cli/jobs/job_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/wire/control_wire.h"

namespace geopipe {
namespace {

std::string LossText(const v1::JobSummary& job) {
  return job.has_last_loss() ? fmt::format("{:.4f}", job.last_loss()) : "-";
}

}  // namespace

Table JobTableOf(const v1::ListJobsResponse& jobs, const JobListOptions& options, int64_t now_unix_ns) {
  std::vector<std::string> headings{"NAME", "STATE", "ITERATION", "LOSS", "AGE"};
  if (options.shows_runs) {
    headings.insert(headings.begin() + 1, "RUN");
  }
  if (options.wide) {
    headings.insert(headings.end(), {"EPOCH", "CAUSE"});
  }
  Table table(headings);
  for (const v1::JobSummary& job : jobs.jobs()) {
    std::vector<std::string> row{job.name(), std::string(JobStateName(job.state())),
                                 fmt::format("{}/{}", job.iterations_done(), job.iterations_total()), LossText(job),
                                 HumanAge(std::max<int64_t>(0, now_unix_ns - job.created_unix_time_ns()))};
    if (options.shows_runs) {
      row.insert(row.begin() + 1, fmt::format("{}", job.run()));
    }
    if (options.wide) {
      row.insert(row.end(), {fmt::format("{}", job.epoch()), job.cause()});
    }
    table.AddRow(std::move(row));
  }
  return table;
}

std::string JobTroubles(const v1::ListJobsResponse& jobs) {
  std::string troubles;
  for (const v1::JobSummary& job : jobs.jobs()) {
    if (!job.trouble().empty()) {
      troubles += fmt::format("warning: job {}: {}\n", job.name(), job.trouble());
    }
  }
  return troubles;
}

Json JobsToJson(const v1::ListJobsResponse& jobs) {
  Json json = Json::array();
  for (const v1::JobSummary& job : jobs.jobs()) {
    json.push_back({{"name", job.name()},
                    {"run", job.run()},
                    {"state", JobStateName(job.state())},
                    {"cause", job.cause()},
                    {"epoch", job.epoch()},
                    {"iterations_done", job.iterations_done()},
                    {"iterations_total", job.iterations_total()},
                    {"created_unix_time_ns", job.created_unix_time_ns()},
                    {"last_loss", job.has_last_loss() ? Json(job.last_loss()) : Json(nullptr)},
                    {"trouble", job.trouble().empty() ? Json(nullptr) : Json(job.trouble())}});
  }
  return json;
}

}  // namespace geopipe
