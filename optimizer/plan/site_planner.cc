#include "optimizer/plan/site_planner.h"

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/groups/node_groups.h"
#include "optimizer/model/plan/plan_costs.h"
#include "optimizer/plan/planner.h"

namespace geopipe {
namespace {

constexpr int64_t kMaxRefinedKinds = 8;

// Renames the sites of a plan, for a site that is alike.
void Rename(const ClusterSpec& cluster, const std::string& site, SitePlan& planned) {
  const std::vector<const SiteSpec*> from = cluster.GroupsOf(planned.site);
  const std::vector<const SiteSpec*> to = cluster.GroupsOf(site);
  const auto rename = [&](std::string& group) {
    const auto at =
        std::ranges::find(from, group, [](const SiteSpec* each) -> const std::string& { return each->name; });
    group = to[static_cast<size_t>(at - from.begin())]->name;
  };
  planned.site = site;
  for (PipelineRankPlan& rank : planned.result.plan.pipeline_ranks) {
    rename(rank.site);
  }
  for (IdleDevices& idle : planned.result.plan.idle) {
    rename(idle.site);
  }
}

PlanRequest OnItsCluster(PlanRequest request) {
  request.job = JobOnCluster(std::move(request.job), request.cluster);
  return request;
}

}  // namespace

SitePlanner::SitePlanner(PlanRequest request)
    : request_(OnItsCluster(std::move(request))),
      source_(request_.job, request_.cluster, request_.profile.has_value() ? &*request_.profile : nullptr),
      refines_(request_.refine && request_.job.search.schedule == ScheduleKind::kAuto && HasFewKinds()) {}

bool SitePlanner::HasFewKinds() const {
  const auto is_first = [this](const std::string& site) { return Alike(site) == site; };
  return std::ranges::count_if(request_.cluster.SiteNames(), is_first) <= kMaxRefinedKinds;
}

std::string SitePlanner::Alike(const std::string& site) const {
  if (source_.profile() == nullptr && SiteOfGroup(site) == site) {
    for (std::string& other : request_.cluster.SiteNames()) {
      if (AreAlike(request_.cluster, site, other)) {
        return std::move(other);
      }
    }
  }
  return site;
}

absl::StatusOr<SitePlan> SitePlanner::Make(const std::string& site, int64_t tokens, int64_t sequence_length) const {
  PlanRequest alone = request_;
  alone.method = SearchMethod::kGenetic;
  alone.baselines = false;
  alone.cluster_bound = false;
  alone.progress = {};
  std::erase_if(alone.cluster.links, [](const LinkSpec& link) { return !link.inside(); });  // it crosses none
  alone.fixed_delta_n.clear();
  alone.refine = refines_;
  alone.refine_fully = false;  // a plan for comparison need not be searched to the last percent
  alone.job.search.schedule = ScheduleKind::kAuto;
  alone.job.parallelism.stages_per_rank = 0;
  alone.job.parallelism.pipeline = 0;
  alone.job.placement.sites = {site};
  alone.job.training.tokens_per_iteration = tokens;
  if (sequence_length != 0) {
    alone.job.search.sequence_length = {sequence_length};
  }
  SitePlan planned{.site = site, .tokens = tokens, .result = {}, .timing = {}};
  GP_ASSIGN_OR_RETURN(planned.result, MakePlan(alone));
  GP_ASSIGN_OR_RETURN(planned.timing, TimeReplica(JobOfPlan(alone.job, planned.result), alone.cluster, source_,
                                                  planned.result.plan, planned.result.costs, planned.result.schedule));
  return planned;
}

absl::StatusOr<const SitePlan*> SitePlanner::At(const std::string& site, int64_t tokens, int64_t sequence_length) {
  const std::tuple key(site, tokens, sequence_length);
  auto known = made_.find(key);
  if (known == made_.end()) {
    const std::string alike = Alike(site);
    absl::StatusOr<SitePlan> made;
    if (alike == site) {
      made = Make(site, tokens, sequence_length);
    } else if (absl::StatusOr<const SitePlan*> other = At(alike, tokens, sequence_length); other.ok()) {
      made = **other;
      Rename(request_.cluster, site, *made);
    } else {
      made = other.status();
    }
    if (absl::IsDeadlineExceeded(made.status())) {
      return made.status();  // there may be more time the next time
    }
    known = made_.emplace(key, std::move(made)).first;
  }
  GP_RETURN_IF_ERROR(known->second.status());
  return &*known->second;
}

}  // namespace geopipe
