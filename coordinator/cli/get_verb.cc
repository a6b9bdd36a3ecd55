// geopipectl get jobs|sites|links|plans: lists.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/cli/asked_cluster.h"
#include "coordinator/cli/control_client.h"
#include "coordinator/cli/jobs/job_list.h"
#include "coordinator/cli/render/format.h"
#include "coordinator/cli/render/plan_output.h"
#include "coordinator/cli/sites/link_output.h"
#include "coordinator/cli/sites/site_output.h"
#include "coordinator/cli/verb.h"
#include "optimizer/base/status_macros.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/output.h"
#include "runtime/base/terminal.h"

namespace geopipe {
namespace {

// One list, ready to print in any format.
struct Listing {
  Table table;
  Json json = Json::array();
  std::string below = "";  // the table
};

// The jobs that a list shows, and how.
struct Wanted {
  std::string name;  // empty: all
  bool wide = false;
  bool all = false;  // earlier runs of names, too
  int64_t run = 0;   // of the name; 0: not asked for
};

absl::StatusOr<Listing> ListJobs(ControlClient& client, const Wanted& wanted) {
  const bool shows_runs = wanted.all || wanted.run > 0;
  GP_ASSIGN_OR_RETURN(v1::ListJobsResponse response, client.ListJobs(shows_runs));
  auto& jobs = *response.mutable_jobs();
  jobs.erase(std::remove_if(jobs.begin(), jobs.end(),
                            [&](const v1::JobSummary& job) {
                              return (!wanted.name.empty() && job.name() != wanted.name) ||
                                     (wanted.run > 0 && job.run() != wanted.run);
                            }),
             jobs.end());
  return Listing{
      .table = JobTableOf(response, {.shows_runs = shows_runs, .wide = wanted.wide}, Clock::Real().UnixNowNs()),
      .json = JobsToJson(response),
      .below = JobTroubles(response)};
}

absl::StatusOr<Listing> ListSites(ControlClient& client, std::string_view name, bool wide) {
  GP_ASSIGN_OR_RETURN(v1::ListSitesResponse response, client.ListSites());
  if (!name.empty()) {
    auto& sites = *response.mutable_sites();
    sites.erase(std::remove_if(sites.begin(), sites.end(), [&](const auto& site) { return site.name() != name; }),
                sites.end());
  }
  GP_ASSIGN_OR_RETURN(const v1::ListLinksResponse links, client.ListLinks());
  return Listing{.table = SiteTableOf(response, links, wide),
                 .json = SitesToJson(response, links),
                 .below = SiteTroubles(response)};
}

absl::StatusOr<Listing> ListLinks(ControlClient& client, std::string_view site, bool wide) {
  GP_ASSIGN_OR_RETURN(v1::ListLinksResponse response, client.ListLinks());
  if (!site.empty()) {
    auto& links = *response.mutable_links();
    links.erase(
        std::remove_if(links.begin(), links.end(),
                       [&](const v1::LinkStatus& link) { return link.from_site() != site && link.to_site() != site; }),
        links.end());
  }
  return Listing{.table = LinkTableOf(response, wide), .json = LinksToJson(response)};
}

absl::StatusOr<Listing> ListPlans(ControlClient& client, std::string_view name) {
  GP_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, client.ListJobs());
  Listing listing{.table = Table({"JOB", "EPOCH", "SCHEDULE", "ΔN", "B", "S", "M", "STAGES", "PREDICTED"})};
  for (const v1::JobSummary& job : response.jobs()) {
    if (!name.empty() && job.name() != name) {
      continue;
    }
    GP_ASSIGN_OR_RETURN(const v1::JobDetail detail, client.GetJob(job.name()));
    if (!detail.has_plan()) {
      continue;
    }
    GP_ASSIGN_OR_RETURN(const Plan plan, FromProto(detail.plan()));
    GP_ASSIGN_OR_RETURN(const Prediction prediction, FromProto(detail.prediction()));
    listing.table.AddRow({job.name(), fmt::format("{}", job.epoch()), std::string(ScheduleTitle(plan.schedule)),
                          DeltaNText(plan).empty() ? "-" : DeltaNText(plan), fmt::format("{}", plan.micro_batch_size),
                          fmt::format("{}", plan.sequence_length), fmt::format("{}", plan.micro_batches),
                          fmt::format("{}", plan.stages.size()), HumanDuration(prediction.iteration_ns)});
    listing.json.push_back({{"job", job.name()},
                            {"epoch", job.epoch()},
                            {"plan", PlanToJson(plan)},
                            {"predicted", PredictionToJson(prediction)}});
  }
  return listing;
}

absl::StatusOr<Listing> MakeListing(ControlClient& client, const std::string& what, const Wanted& wanted) {
  if (what == "jobs") {
    return ListJobs(client, wanted);
  }
  if (what == "sites") {
    return ListSites(client, wanted.name, wanted.wide);
  }
  if (what == "links") {
    return ListLinks(client, wanted.name, wanted.wide);
  }
  if (what == "plans") {
    return ListPlans(client, wanted.name);
  }
  return absl::InvalidArgumentError(fmt::format("cannot list '{}': jobs, sites, links or plans", what));
}

absl::StatusOr<int> PrintTopology(ControlClient& client, const std::string& what, const std::string& name,
                                  const std::string& server) {
  if (what != "sites") {
    return absl::InvalidArgumentError(
        fmt::format("-o topology writes sites and their links; use it with 'get sites', not with 'get {}'", what));
  }
  GP_ASSIGN_OR_RETURN(const ReportedCluster reported, AskForCluster(client, name));
  PrintOut("{}", TopologyText(reported, server));
  return kExitOk;
}

}  // namespace

absl::StatusOr<int> RunGet(std::span<const std::string> arguments) {
  CommonFlags common;
  std::string what;
  Wanted wanted;
  std::optional<int64_t> asked_run;
  FlagSet flags("geopipectl get",
                "Lists what the coordinator knows; 'get sites -o topology' writes a topology file for plan.");
  flags.AddPositional("jobs|sites|links|plans", &what, true, "What to list.");
  flags.AddPositional("NAME", &wanted.name, false, "Only this job or site; for links, only those of this site.");
  flags.Add("all", &wanted.all, "Of jobs, also earlier runs of names that were applied again.");
  AddRunFlag(flags, &asked_run);
  common.AddServer(flags);
  common.AddFormat(flags, {"table", "wide", "json", "yaml", "topology"});
  if (const auto exit_code = ParseVerbFlags(flags, arguments)) {
    return *exit_code;
  }
  for (const std::string_view kind : {"jobs", "sites", "links", "plans"}) {
    what = what == kind.substr(0, kind.size() - 1) ? kind : what;  // get job NAME
  }
  GP_ASSIGN_OR_RETURN(wanted.run, RunOf(asked_run));
  if (what != "jobs" && (wanted.all || wanted.run > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("only jobs have runs: use --all and --run with 'get jobs', not with 'get {}'", what));
  }
  if (wanted.run > 0 && wanted.name.empty()) {
    return absl::InvalidArgumentError("--run needs the job's name: geopipectl get job NAME --run N");
  }
  ControlClient client(common.server, common.timeout_ns);
  if (common.output == OutputFormat::kTopology) {
    return PrintTopology(client, what, wanted.name, common.server);
  }
  wanted.wide = common.output == OutputFormat::kWide;
  GP_ASSIGN_OR_RETURN(const Listing listing, MakeListing(client, what, wanted));
  if (!wanted.name.empty() && listing.json.empty()) {
    return OrFailed(absl::NotFoundError(
        wanted.run > 0
            ? fmt::format("there is no run {} of job '{}', or it is kept no more; `geopipectl get jobs --all` "
                          "lists those that are",
                          wanted.run, wanted.name)
            : fmt::format("there are no {} of '{}'; `geopipectl get {}` lists all", what, wanted.name, what)));
  }
  if (common.output == OutputFormat::kJson || common.output == OutputFormat::kYaml) {
    PrintDocument(listing.json, common.output);
  } else if (listing.table.rows() == 0) {
    PrintOut("no {}\n{}", what, listing.below);
  } else {
    PrintOut("{}{}", listing.table.Render(TextColumns()), listing.below);
  }
  return kExitOk;
}

}  // namespace geopipe
