// geopipectl explain: the reference of a file, made from the tables that read it.
#include <fmt/format.h>

#include "coordinator/cli/verb.h"
#include "coordinator/spec/case_file.h"
#include "coordinator/spec/profile_file.h"
#include "coordinator/spec/topology_file.h"
#include "runtime/manifest/agent_config.h"
#include "runtime/manifest/coordinator_config.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {

absl::StatusOr<int> RunExplain(std::span<const std::string> arguments) {
  std::string subject;
  FlagSet flags("geopipectl explain",
                "Prints every key of a file with its type, range and default, and what it means.");
  flags.AddPositional("job|topology|case|profile|agent|coordinator", &subject, true, "The kind of file.");
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  if (subject == "job") {
    fmt::print("{}", ExplainJob());
  } else if (subject == "topology") {
    fmt::print("{}", ExplainTopology());
  } else if (subject == "case") {
    fmt::print("{}", ExplainCase());
  } else if (subject == "profile") {
    fmt::print("{}", ExplainProfile());
  } else if (subject == "agent") {
    fmt::print(
        "The configuration of geopipe-agent (--config FILE); GEOPIPE_AGENT_STATE_DIR and --set state_dir=DIR "
        "come over the file.\n\n{}",
        agent::AgentConfigSchema().Reference());
  } else if (subject == "coordinator") {
    fmt::print(
        "The configuration of geopipe-coordinator (--config FILE); GEOPIPE_COORDINATOR_LISTEN comes over the "
        "file.\n\n{}",
        CoordinatorConfigSchema().Reference());
  } else {
    return absl::InvalidArgumentError(
        fmt::format("nothing to explain about '{}': job, topology, case, profile, agent or coordinator", subject));
  }
  return kExitOk;
}

}  // namespace geopipe
