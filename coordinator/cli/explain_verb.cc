// geopipectl explain: the reference of a file, made from the tables that read it.
#include <fmt/format.h>

#include "coordinator/cli/verb.h"
#include "coordinator/spec/case_file.h"
#include "coordinator/spec/job_file.h"
#include "coordinator/spec/profile_file.h"
#include "coordinator/spec/topology_file.h"

namespace geopipe {

int RunExplain(std::span<const std::string> arguments) {
  std::string subject;
  FlagSet flags("geopipectl explain", "Prints every key of a file with its type, its default and what it means.");
  flags.AddPositional("job|topology|case|profile", &subject, true, "The kind of file.");
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
  } else {
    return Fail(absl::InvalidArgumentError(
                    fmt::format("nothing to explain about '{}': job, topology, case or profile", subject)),
                kExitBadInput);
  }
  return kExitOk;
}

}  // namespace geopipe
