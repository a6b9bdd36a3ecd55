#include "coordinator/cli/jobs/job_list.h"

#include <catch2/catch.hpp>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

void AddJob(v1::ListJobsResponse& jobs, const std::string& name, int64_t run, v1::JobState state, int64_t done) {
  v1::JobSummary& job = *jobs.add_jobs();
  job.set_name(name);
  job.set_run(run);
  job.set_state(state);
  job.set_cause("the cause");
  job.set_epoch(2);
  job.set_iterations_done(done);
  job.set_iterations_total(100);
  job.set_created_unix_time_ns(run * kSecond);
  if (done > 0) {
    job.set_last_loss(2.5);
  }
}

v1::ListJobsResponse Jobs() {
  v1::ListJobsResponse jobs;
  AddJob(jobs, "tiny", 1, v1::JOB_STATE_FAILED, 12);
  AddJob(jobs, "other", 1, v1::JOB_STATE_COMPLETED, 100);
  AddJob(jobs, "tiny", 2, v1::JOB_STATE_PENDING, 0);
  jobs.mutable_jobs(2)->set_trouble("something is wrong");
  return jobs;
}

TEST_CASE("jobs are listed, on demand with the runs of their names") {
  CHECK(JobTableOf(Jobs(), {}, 61 * kSecond).Render(kAnyColumns) ==
        "NAME   STATE      ITERATION    LOSS         AGE\n"
        "tiny   FAILED        12/100  2.5000  1 min 00 s\n"
        "other  COMPLETED    100/100  2.5000  1 min 00 s\n"
        "tiny   PENDING        0/100       -        59 s\n");
  CHECK(JobTableOf(Jobs(), {.shows_runs = true, .wide = true}, 61 * kSecond).Render(kAnyColumns) ==
        "NAME   RUN  STATE      ITERATION    LOSS         AGE  EPOCH  CAUSE\n"
        "tiny     1  FAILED        12/100  2.5000  1 min 00 s      2  the cause\n"
        "other    1  COMPLETED    100/100  2.5000  1 min 00 s      2  the cause\n"
        "tiny     2  PENDING        0/100       -        59 s      2  the cause\n");
  CHECK(JobTroubles(Jobs()) == "warning: job tiny: something is wrong\n");
}

TEST_CASE("jobs as JSON have their run") {
  const Json json = JobsToJson(Jobs());
  REQUIRE(json.size() == 3);
  CHECK(json[0].dump() ==
        R"({"name":"tiny","run":1,"state":"FAILED","cause":"the cause","epoch":2,"iterations_done":12,)"
        R"("iterations_total":100,"created_unix_time_ns":1000000000,"last_loss":2.5,"trouble":null})");
  CHECK(json[2]["run"] == 2);
  CHECK(json[2]["last_loss"].is_null());
  CHECK(json[2]["trouble"] == "something is wrong");
}

}  // namespace
}  // namespace geopipe
