#include "coordinator/cli/what_if.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "coordinator/cli/plan_verb.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/render/what_if_output.h"
#include "coordinator/spec/plan_change.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/output.h"

namespace geopipe {
namespace {

constexpr std::string_view kFlag = "--what-if";

// True for an error that is a part of the answer: there is no plan.
bool IsNoPlan(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsDeadlineExceeded(status);
}

WhatIfSide SideOf(const absl::StatusOr<Planned>& planned) {
  if (!planned.ok()) {
    return {.missing = std::string(planned.status().message())};
  }
  return {.result = &planned->result,
          .figures = &planned->figures,
          .alternatives = &planned->alternatives,
          .memory = &planned->memory};
}

Json DocumentOf(const absl::StatusOr<Planned>& planned) {
  return planned.ok() ? PlannedToJson(*planned) : Json(nullptr);
}

Json ReasonOf(const absl::StatusOr<Planned>& planned) {
  return planned.ok() ? Json(nullptr) : Json(std::string(planned.status().message()));
}

std::vector<std::string> AllChanges(const WhatIfFlags& flags) {
  std::vector<std::string> all;
  for (const std::string& text : flags.changes) {
    for (std::string& change : SplitChanges(text)) {
      all.push_back(std::move(change));
    }
  }
  return all;
}

}  // namespace

void WhatIfFlags::Add(FlagSet& flags) {
  flags.Add("what-if", &changes, "KEY=VALUE[,KEY=VALUE…]",
            "Plan again with other figures and show both plans: bandwidth=400Gbps or latency=10ms of every link, "
            "A-B.bandwidth=… of one; nodes=…, device.KEY=…, device=NAME, network.KEY=… of every site, SITE.nodes=… of "
            "one; keys of the job (tensor=4, search.schedule=geopipe, micro_batch_size=[1,2]).");
}

absl::Status WhatIfFlags::Check(bool explain, bool sweep, const TimelineFlags& timeline) const {
  const std::string_view other = sweep                            ? "--sweep"
                                 : explain                        ? "--explain"
                                 : timeline.gantt                 ? "--gantt"
                                 : !timeline.export_svg.empty()   ? "--export-svg"
                                 : !timeline.export_trace.empty() ? "--export-trace"
                                 : !timeline.export_csv.empty()   ? "--export-csv"
                                                                  : "";
  if (other.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("{} is about {} and {} about two; leave one of them out", other,
                                                sweep ? "many plans" : "one plan", kFlag));
}

absl::StatusOr<int> RunWhatIf(const WhatIfFlags& flags, PlanRequest request, Clock& clock, OutputFormat output) {
  PlanRequest changed = request;
  const std::vector<std::string> changes = AllChanges(flags);
  GP_ASSIGN_OR_RETURN(const std::vector<PlanChange> made, ApplyChanges(changes, kFlag, changed.job, changed.cluster));
  ProgressMeter progress;
  const absl::StatusOr<Planned> now =
      MakeTimedPlan(std::move(request), /*explain=*/false, clock, progress, "planning as it is");
  if (!now.ok() && !IsNoPlan(now.status())) {
    return now.status();
  }
  absl::StatusOr<Planned> then =
      MakeTimedPlan(std::move(changed), /*explain=*/false, clock, progress, "planning what would be");
  progress.End();
  absl::Status error;
  if (!then.ok()) {
    error = absl::Status(then.status().code(), fmt::format("{} {}: {}", kFlag, fmt::join(changes, ","),
                                                           std::string(then.status().message())));
  }
  if (!error.ok() && (!now.ok() || !IsNoPlan(error))) {
    return error;
  }
  const WhatIfSide before = SideOf(now);
  const WhatIfSide after = SideOf(then);
  if (output == OutputFormat::kJson || output == OutputFormat::kYaml) {
    Json keys = Json::array();
    for (const PlanChange& change : made) {
      keys.push_back({{"key", change.key}, {"from", change.from}, {"to", change.to}});
    }
    PrintDocument({{"changed", std::move(keys)},
                   {"now", DocumentOf(now)},
                   {"now_missing", ReasonOf(now)},
                   {"then", DocumentOf(then)},
                   {"then_missing", ReasonOf(then)},
                   {"change", WhatIfChangeToJson(before, after)}},
                  output);
  } else {
    std::vector<ChangedFigure> figures;
    for (const PlanChange& change : made) {
      figures.push_back({change.key, change.from, change.to});
    }
    PrintOut("{}", WhatIfText(figures, before, after));
  }
  (void)FlushOutput();
  return error.ok() ? absl::StatusOr<int>(kExitOk) : error;
}

}  // namespace geopipe
