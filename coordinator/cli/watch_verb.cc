// geopipectl watch: follows a job until it is in a final state.
#include <fmt/format.h>

#include <cstdio>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/run_report.h"
#include "coordinator/cli/verb.h"
#include "proto/wire/control_wire.h"

namespace geopipe {
namespace {

nlohmann::ordered_json ToJson(const v1::WatchJobResponse& event) {
  if (event.has_transition()) {
    return {{"state", JobStateName(event.transition().state())},
            {"unix_time_ns", event.transition().unix_time_ns()},
            {"cause", event.transition().cause()}};
  }
  nlohmann::ordered_json json{{"iteration", event.iteration().iteration()}, {"loss", event.iteration().loss()}};
  if (event.iteration().has_grad_norm()) {
    json["grad_norm"] = event.iteration().grad_norm();
  }
  json["duration_s"] = static_cast<double>(event.iteration().duration_ns()) / 1e9;
  return json;
}

}  // namespace

int RunWatch(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string name;
  int64_t from_iteration = 0;
  FlagSet flags("geopipectl watch", "Follows a job until it has ended; exits 0 when it has completed.");
  flags.AddPositional("JOB", &name, true, "Name of the job.");
  flags.Add("from", &from_iteration, "N", "First iteration to show.");
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  ControlClient client(common.server, common.timeout_ns);
  const absl::StatusOr<v1::JobDetail> detail = client.GetJob(name);
  if (!detail.ok()) {
    return Fail(detail.status(), RemoteExitCode(detail.status()));
  }
  v1::JobState last = v1::JOB_STATE_UNSPECIFIED;
  const absl::Status status = client.WatchJob(name, from_iteration, [&](const v1::WatchJobResponse& event) {
    if (event.has_transition()) {
      last = event.transition().state();
    }
    if (common.output == OutputFormat::kJson) {
      fmt::print("{}\n", ToJson(event).dump());
    } else if (event.has_transition()) {
      fmt::print("{:<10} {}\n", JobStateName(last), event.transition().cause());
    } else {
      fmt::print("{}\n", IterationLine(event.iteration(), detail->summary().iterations_total(),
                                       detail->spec().training().tokens_per_iteration()));
    }
    std::fflush(stdout);
    return true;
  });
  if (!status.ok()) {
    return Fail(status, RemoteExitCode(status));
  }
  return last == v1::JOB_STATE_COMPLETED ? kExitOk : kExitFailed;
}

}  // namespace geopipe
