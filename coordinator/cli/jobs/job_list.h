// Lists of jobs, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "geopipe/v1/control_service.pb.h"

namespace geopipe {

struct JobListOptions {
  bool shows_runs = false;  // a column with which run of its name each job is
  bool wide = false;        // columns EPOCH and CAUSE
};

// A job a row; AGE is the time from its submission to `now_unix_ns`.
Table JobTableOf(const v1::ListJobsResponse& jobs, const JobListOptions& options, int64_t now_unix_ns);
// A line for each job in trouble; empty without any.
std::string JobTroubles(const v1::ListJobsResponse& jobs);
Json JobsToJson(const v1::ListJobsResponse& jobs);

}  // namespace geopipe
