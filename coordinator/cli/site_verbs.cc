// geopipectl drain site, uncordon site, stop-stray and backup: verbs of those who operate a federation.
#include <fmt/format.h>

#include "coordinator/cli/control_client.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "runtime/base/output.h"

namespace geopipe {
namespace {

struct SiteVerb {
  const char* name;
  const char* summary;
};

// Words after the verb, "site NAME"; or the exit code if the flags end the verb.
struct Parsed {
  std::optional<int> exit_code;
  std::string site;
  CommonFlags common;
};

absl::StatusOr<Parsed> ParseSite(const SiteVerb& verb, std::span<const std::string> arguments) {
  Parsed parsed;
  std::vector<std::string> words;
  FlagSet flags(fmt::format("geopipectl {}", verb.name), verb.summary);
  flags.AddPositionals("site NAME", &words, "The site ('geopipectl get sites').");
  parsed.common.AddServer(flags);
  parsed.common.AddFormat(flags, {"table", "json", "yaml"});
  parsed.exit_code = ParseVerbFlags(flags, arguments);
  if (!parsed.exit_code.has_value() && (words.size() != 2 || words.front() != "site")) {
    return absl::InvalidArgumentError(fmt::format("name one site: geopipectl {} site NAME", verb.name));
  }
  parsed.site = words.empty() ? "" : words.back();
  return parsed;
}

}  // namespace

absl::StatusOr<int> RunDrain(std::span<const std::string> arguments) {
  GP_ASSIGN_OR_RETURN(
      const Parsed parsed,
      ParseSite({"drain",
                 "Takes a site out of use: no job gets its devices, and jobs that run there move to other sites once "
                 "their state is safe there. 'geopipectl uncordon site NAME' takes it back."},
                arguments));
  if (parsed.exit_code.has_value()) {
    return *parsed.exit_code;
  }
  ControlClient client(parsed.common.server, parsed.common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::DrainSiteResponse response, client.DrainSite(parsed.site));
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
  for (const v1::JobAtSite& job : response.jobs()) {
    jobs.push_back(
        {{"name", job.name()}, {"state", JobStateName(job.state())}, {"stays", job.stays()}, {"words", job.words()}});
  }
  if (parsed.common.output != OutputFormat::kTable) {
    PrintDocument({{"site", parsed.site}, {"already", response.already()}, {"jobs", std::move(jobs)}},
                  parsed.common.output);
    return kExitOk;
  }
  PrintOut("site {} is {}drained{}\n", parsed.site, response.already() ? "already " : "",
           response.jobs_size() == 0 ? "; no job has devices there" : "");
  for (const v1::JobAtSite& job : response.jobs()) {
    PrintOut("job {} {}: {}{}\n", job.name(), JobStateName(job.state()), job.stays() ? "stays: " : "", job.words());
  }
  return kExitOk;
}

absl::StatusOr<int> RunUncordon(std::span<const std::string> arguments) {
  GP_ASSIGN_OR_RETURN(
      const Parsed parsed,
      ParseSite({"uncordon",
                 "Takes a drained site into use again: jobs that had to leave it use it from their next "
                 "checkpoint on."},
                arguments));
  if (parsed.exit_code.has_value()) {
    return *parsed.exit_code;
  }
  ControlClient client(parsed.common.server, parsed.common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::UncordonSiteResponse response, client.UncordonSite(parsed.site));
  if (parsed.common.output != OutputFormat::kTable) {
    PrintDocument({{"site", parsed.site}, {"drained", false}, {"already", response.already()}}, parsed.common.output);
  } else {
    PrintOut("site {} is {}\n", parsed.site, response.already() ? "already in use" : "in use again");
  }
  return kExitOk;
}

absl::StatusOr<int> RunStopStray(std::span<const std::string> arguments) {
  std::vector<std::string> words;
  FlagSet flags("geopipectl stop-stray",
                "Stops the workers of a node whose run the coordinator does not know; what they have kept in memory is "
                "lost. 'geopipectl get sites' names them.");
  CommonFlags common;
  flags.AddPositionals("SITE/NODE", &words, "The node.");
  common.AddServer(flags);
  if (const std::optional<int> exit_code = ParseVerbFlags(flags, arguments); exit_code.has_value()) {
    return *exit_code;
  }
  const size_t slash = words.size() == 1 ? words.front().find('/') : std::string::npos;
  if (slash == std::string::npos) {
    return absl::InvalidArgumentError("name one node: geopipectl stop-stray SITE/NODE");
  }
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::StopStrayResponse response,
                      client.StopStray(words.front().substr(0, slash), words.front().substr(slash + 1)));
  for (const v1::StrayWorker& stray : response.strays()) {
    PrintOut("stopping worker {}/{} of job {}\n", words.front(), stray.device(), stray.job());
  }
  return kExitOk;
}

absl::StatusOr<int> RunBackup(std::span<const std::string> arguments) {
  FlagSet flags("geopipectl backup",
                "Writes a copy of the job store, in a folder beside it on the coordinator's host, while jobs go on. "
                "'geopipe-coordinator --restore FILE' puts it back.");
  CommonFlags common;
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "json", "yaml"});
  if (const std::optional<int> exit_code = ParseVerbFlags(flags, arguments); exit_code.has_value()) {
    return *exit_code;
  }
  ControlClient client(common.server, common.timeout_ns);
  GP_ASSIGN_OR_RETURN(const v1::BackupStoreResponse response, client.BackupStore());
  if (common.output != OutputFormat::kTable) {
    PrintDocument({{"path", response.path()}, {"bytes", response.bytes()}}, common.output);
  } else {
    PrintOut("the job store is backed up to {} ({}), on the coordinator's host\n", response.path(),
             HumanBytes(response.bytes()));
  }
  return kExitOk;
}

}  // namespace geopipe
