#include "coordinator/cli/verb.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("ΔN is a list of non-negative numbers") {
  CHECK(*ParseDeltaN("2,1") == std::vector<int32_t>{2, 1});
  CHECK(*ParseDeltaN("0") == std::vector<int32_t>{0});
  for (const char* bad : {"", ",", "1,", "-1", "a", "1;2", "99999999999"}) {
    INFO(bad);
    CHECK(ParseDeltaN(bad).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("errors become exit codes") {
  CHECK(ExitCodeOf(absl::InvalidArgumentError("")) == kExitBadInput);
  CHECK(ExitCodeOf(absl::NotFoundError("")) == kExitBadInput);
  CHECK(ExitCodeOf(absl::FailedPreconditionError("")) == kExitInfeasible);
  CHECK(ExitCodeOf(absl::InternalError("")) == kExitFailed);
  CHECK(ExitCodeOf(OrFailed(absl::InvalidArgumentError(""))) == kExitFailed);
  CHECK(ExitCodeOf(WithExitCode(absl::NotFoundError(""), kExitInterrupted)) == kExitInterrupted);
  CHECK(RemoteExitCode(absl::UnavailableError("")) == kExitUnreachable);
  CHECK(RemoteExitCode(absl::DeadlineExceededError("")) == kExitUnreachable);
  CHECK(RemoteExitCode(absl::PermissionDeniedError("")) == kExitDenied);
  CHECK(RemoteExitCode(absl::NotFoundError("")) == kExitFailed);
  CHECK(RemoteExitCode(absl::InvalidArgumentError("")) == kExitBadInput);
}

TEST_CASE("YAML output nests like the JSON") {
  const nlohmann::ordered_json json{
      {"a", 1}, {"b", {{"c", "x: y"}, {"d", nlohmann::ordered_json::array()}}}, {"e", {1, 2}}};
  CHECK(ToYaml(json) == "\"a\": 1\n\"b\":\n  \"c\": \"x: y\"\n  \"d\": []\n\"e\":\n  - 1\n  - 2\n");
}

}  // namespace
}  // namespace geopipe
