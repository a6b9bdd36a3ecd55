#include "coordinator/cli/job_description.h"

#include <catch2/catch.hpp>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

// A job that has failed before it had a plan.
v1::JobDetail Failed(int64_t run) {
  v1::JobDetail detail;
  v1::JobSummary& summary = *detail.mutable_summary();
  summary.set_name("tiny");
  summary.set_run(run);
  summary.set_state(v1::JOB_STATE_FAILED);
  summary.set_cause("no such data");
  summary.set_iterations_total(100);
  for (const auto& [state, cause] :
       {std::pair(v1::JOB_STATE_PENDING, "submitted"), std::pair(v1::JOB_STATE_FAILED, "no such data")}) {
    v1::JobTransition& transition = *detail.add_transitions();
    transition.set_state(state);
    transition.set_unix_time_ns((1'700'000'000 + detail.transitions_size()) * kSecond);
    transition.set_cause(cause);
  }
  detail.set_manifest("kind: TrainingJob\n");
  return detail;
}

TEST_CASE("a job is described, with its run where that is asked for or not the first") {
  const std::string rest =
      "state         FAILED: no such data\n"
      "iteration     0/100\n"
      "\n"
      "         TIME (UTC)  STATE    CAUSE\n"
      "2023-11-14 22:13:21  PENDING  submitted\n"
      "2023-11-14 22:13:22  FAILED   no such data\n"
      "\n"
      "job file, with every default:\n"
      "kind: TrainingJob\n";
  CHECK(*DescriptionText(Failed(1), std::nullopt) == "job           tiny\n" + rest);
  CHECK(*DescriptionText(Failed(1), std::nullopt, {.shows_run = true}) ==
        "job           tiny\nrun           1\n" + rest);
  CHECK(*DescriptionText(Failed(2), std::nullopt) == "job           tiny\nrun           2\n" + rest);
}

TEST_CASE("a job is described as JSON") {
  const Json json = *DescriptionToJson(Failed(2), std::nullopt);
  CHECK(json["job"] == "tiny");
  CHECK(json["run"] == 2);
  CHECK(json["state"] == "FAILED");
  CHECK(json["cause"] == "no such data");
  CHECK(json["plan"].is_null());
  CHECK(json["comparison"].is_null());
  CHECK(json["transitions"].size() == 2);
  CHECK(json["transitions"][1]["unix_time_ns"] == 1'700'000'002 * kSecond);
  CHECK(json["manifest"] == "kind: TrainingJob\n");
  CHECK_FALSE(json.contains("artifacts"));
}

}  // namespace
}  // namespace geopipe
