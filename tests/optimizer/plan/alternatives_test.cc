#include "optimizer/plan/alternatives.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "optimizer/model/transformer.h"
#include "optimizer/plan/planner.h"
#include "tests/optimizer/plan/jobs.h"
#include "tests/support/sanitized.h"

namespace geopipe {
namespace {

// Degrees are left open, so that every site can have its own.
PlanRequest ComparedRequest() {
  PlanRequest request = test::PaperRequest();
  request.job.parallelism.tensor = 0;
  request.job.parallelism.pipeline = 0;
  request.job.parallelism.data = 0;
  request.job.parallelism.layers = LayerSplit::kAuto;
  return request;
}

Alternatives AlternativesOf(const PlanRequest& request) {
  const absl::StatusOr<PlanResult> plan = MakePlan(request);
  SitePlanner sites(request);
  return FindAlternatives(sites, request.cluster, plan.ok() ? &*plan : nullptr);
}

TEST_CASE("there is one of each kind, and the plan is one of them") {
  const PlanRequest request = ComparedRequest();
  const PlanResult plan = *MakePlan(request);
  const Alternatives alternatives = AlternativesOf(request);
  REQUIRE(alternatives.all.size() == 4);
  for (const AlternativeKind kind : {AlternativeKind::kSingleSite, AlternativeKind::kPipeline,
                                     AlternativeKind::kSiteReplicas, AlternativeKind::kLocalSteps}) {
    INFO(AlternativeName(kind));
    const Alternative& each = alternatives.Of(kind);
    CHECK(each.kind == kind);
    CHECK(each.found());
    CHECK(each.is_plan == (kind == AlternativeKind::kPipeline));
    CHECK(each.tokens_per_s == Approx(double{1 << 20} / (1e-9 * static_cast<double>(each.iteration_ns))));
    CHECK(each.changes_training() == (kind == AlternativeKind::kLocalSteps));
  }
  const Alternative& pipeline = alternatives.Of(AlternativeKind::kPipeline);
  CHECK(pipeline.iteration_ns == plan.prediction.iteration_ns);
  CHECK(pipeline.wan_bytes_per_iteration == plan.prediction.wan_bytes_per_iteration);
  CHECK(pipeline.devices == plan.plan.grid.size());
}

TEST_CASE("every site of the replicas has a whole plan for its share, and the shares are all tokens") {
  const PlanRequest request = ComparedRequest();
  const Alternative replicas = AlternativesOf(request).Of(AlternativeKind::kSiteReplicas);
  REQUIRE(replicas.found());
  REQUIRE(replicas.shares.size() == 3);
  int64_t tokens = 0;
  int64_t devices = 0;
  int64_t slowest_ns = 0;
  std::set<int64_t> lengths;
  for (const SiteShare& share : replicas.shares) {
    INFO(share.site);
    const Plan& plan = share.plan;
    CHECK(plan.micro_batch_size * plan.sequence_length * plan.micro_batches * plan.grid.data == share.tokens);
    CHECK(std::ranges::all_of(plan.pipeline_ranks, [&](const PipelineRankPlan& rank) {
      return rank.site == share.site && rank.peak_bytes > 0 && rank.peak_bytes <= rank.capacity_bytes;
    }));
    CHECK(plan.stages.back().layers.last == request.job.model.num_hidden_layers - 1);
    lengths.insert(plan.sequence_length);
    tokens += share.tokens;
    devices += plan.grid.size();
    slowest_ns = std::max(slowest_ns, share.prediction.iteration_ns);
  }
  CHECK(tokens == request.job.training.tokens_per_iteration);
  CHECK(lengths.size() == 1);
  CHECK(devices == replicas.devices);
  // Three, two and three nodes: each as many tokens as it is fast.
  CHECK(replicas.shares[0].tokens == 3 << 17);
  CHECK(replicas.shares[1].tokens == 2 << 17);
  CHECK(replicas.shares[2].tokens == 3 << 17);
  // 13.0 billion gradients of four bytes at 50 GB/s; east joins the others, the farther one 8 ms away.
  CHECK(replicas.reduced_bytes == 13'015'864'320 * 4);
  CHECK(replicas.reduction->root == "east");
  CHECK(replicas.reduction_ns == 1'041'269'146 + 2 * 8 * test::kMillisecond);
  CHECK(replicas.exposed_ns > 0);
  CHECK(replicas.exposed_ns < replicas.reduction_ns);
  CHECK(replicas.iteration_ns == slowest_ns + replicas.exposed_ns);
  CHECK(replicas.wan_bytes_per_iteration == 4 * replicas.reduced_bytes);
}

TEST_CASE("a share is planned as a job at that site alone would be, and like sites alike") {
  PlanRequest request = ComparedRequest();
  const Alternative replicas = AlternativesOf(request).Of(AlternativeKind::kSiteReplicas);
  PlanRequest alone = request;
  alone.job.placement.sites = {"west"};
  alone.job.search.schedule = ScheduleKind::kAuto;
  alone.job.search.sequence_length = {replicas.shares[2].plan.sequence_length};
  alone.job.training.tokens_per_iteration = replicas.shares[2].tokens;
  const PlanResult west = *MakePlan(alone);
  CHECK(replicas.shares[2].plan == west.plan);
  CHECK(replicas.shares[2].prediction == west.prediction);
  Plan renamed = replicas.shares[0].plan;
  for (PipelineRankPlan& rank : renamed.pipeline_ranks) {
    rank.site = "west";
  }
  CHECK(renamed == west.plan);
}

TEST_CASE("a site with groups of nodes has one replica over them, and like sites have it alike") {
  PlanRequest request = ComparedRequest();
  request.cluster = test::RegionsOfGroups();
  request.job.placement.sites.clear();
  const Alternatives alternatives = AlternativesOf(request);
  const Alternative& replicas = alternatives.Of(AlternativeKind::kSiteReplicas);
  REQUIRE(replicas.found());
  REQUIRE(replicas.shares.size() == 2);
  CHECK(replicas.shares[0].site == "north");
  CHECK(replicas.shares[1].site == "west");
  CHECK(replicas.shares[0].prediction == replicas.shares[1].prediction);
  for (const SiteShare& share : replicas.shares) {
    std::set<std::string> groups;
    for (const PipelineRankPlan& rank : share.plan.pipeline_ranks) {
      groups.insert(rank.site);
    }
    CHECK(groups == std::set<std::string>{share.site + "/fast", share.site + "/slow"});
  }
  // The reduction takes the link between the sites once, whatever the number of their groups.
  CHECK(replicas.reduction->links == std::vector<std::pair<std::string, std::string>>{{"north", "west"}});
  const Alternative& single = alternatives.Of(AlternativeKind::kSingleSite);
  REQUIRE(single.found());
  CHECK(single.shares.front().site == "north");
  CHECK(single.devices == 20);
  if (kSanitized) {
    return;  // tests of plans ask for baselines
  }
  request.baselines = true;
  const PlanResult plan = MakePlan(request).value();
  const auto baseline = std::ranges::find(plan.baselines, BaselineScope::kSingleSite, &Baseline::scope);
  REQUIRE(baseline != plan.baselines.end());
  CHECK(baseline->site == "north");
}

TEST_CASE("local steps are the same replicas with a reduction now and then, and are never the fastest") {
  PlanRequest request = ComparedRequest();
  for (LinkSpec& link : request.cluster.links) {
    link.latency_ns = 100 * test::kMillisecond;
    link.bandwidth_bytes_per_s = 5e9;
  }
  const Alternatives alternatives = AlternativesOf(request);
  const Alternative& replicas = alternatives.Of(AlternativeKind::kSiteReplicas);
  const Alternative& local = alternatives.Of(AlternativeKind::kLocalSteps);
  CHECK(local.shares == replicas.shares);
  CHECK(local.reduced_bytes == 13'015'864'320 * 4);
  CHECK(local.reduction_ns == 10'412'691'456 + 2 * 100 * test::kMillisecond);
  CHECK(local.exposed_ns == (local.reduction_ns + 99) / 100);
  CHECK(local.iteration_ns - local.exposed_ns == replicas.iteration_ns - replicas.exposed_ns);
  for (const Alternative& other : alternatives.all) {
    CHECK((&other == &local || other.iteration_ns > local.iteration_ns));
  }
  CHECK(alternatives.Fastest()->kind != AlternativeKind::kLocalSteps);
  CHECK(LeadOf(alternatives)->kind == alternatives.Fastest()->kind);
}

TEST_CASE("the lead is over the next one that is the same training") {
  const auto found = [](AlternativeKind kind, int64_t iteration_ns, bool is_plan = false) {
    return Alternative{
        .kind = kind, .missing = iteration_ns == 0 ? "none" : "", .is_plan = is_plan, .iteration_ns = iteration_ns};
  };
  const auto all = [&](int64_t single_ns, int64_t pipeline_ns, int64_t replicas_ns, int64_t local_ns) {
    return Alternatives{
        {found(AlternativeKind::kSingleSite, single_ns), found(AlternativeKind::kPipeline, pipeline_ns, true),
         found(AlternativeKind::kSiteReplicas, replicas_ns), found(AlternativeKind::kLocalSteps, local_ns)}};
  };
  CHECK(LeadOf(all(400, 200, 100, 10))->kind == AlternativeKind::kSiteReplicas);
  CHECK(LeadOf(all(400, 200, 100, 10))->saved == Approx(0.5));
  CHECK(LeadOf(all(100, 100, 100, 10))->kind == AlternativeKind::kPipeline);  // of equals the plan
  CHECK(LeadOf(all(100, 0, 0, 10))->kind == AlternativeKind::kSingleSite);
  CHECK_FALSE(LeadOf(all(100, 0, 0, 10))->saved.has_value());
  CHECK_FALSE(LeadOf(all(0, 0, 0, 10)).has_value());
}

TEST_CASE("what cannot be is missing, with the reason") {
  PlanRequest request = ComparedRequest();
  for (const size_t site : {1, 2}) {
    request.cluster.sites[site].device.memory_bytes = 6 * test::kGiB;
  }
  const Alternatives small = AlternativesOf(request);
  const Alternative& replicas = small.Of(AlternativeKind::kSiteReplicas);
  CHECK_FALSE(replicas.found());
  CHECK_THAT(replicas.missing, Catch::StartsWith("east alone: the job does not fit"));
  CHECK(small.Of(AlternativeKind::kLocalSteps).missing == replicas.missing);
  CHECK(small.Of(AlternativeKind::kSingleSite).found());

  request = ComparedRequest();
  request.job.placement.sites.clear();
  request.cluster.links.clear();
  const Alternatives apart = AlternativesOf(request);
  CHECK(apart.Of(AlternativeKind::kSingleSite).is_plan);
  CHECK(apart.Of(AlternativeKind::kPipeline).missing == "no plan over several sites is faster than one site");
  CHECK(apart.Of(AlternativeKind::kSiteReplicas).missing ==
        "the topology's links do not join north, east, west with each other");

  request = ComparedRequest();
  request.job.placement.sites = {"north"};
  const Alternatives one = AlternativesOf(request);
  CHECK(one.Of(AlternativeKind::kPipeline).missing == "the job has one site");
  CHECK(one.Of(AlternativeKind::kSiteReplicas).missing == "the job has one site");
}

TEST_CASE("replicas leave out a site that links make too slow, or that cannot hold the model") {
  PlanRequest request = ComparedRequest();
  CHECK(AlternativesOf(request).Of(AlternativeKind::kSiteReplicas).shares.size() == 3);
  request.cluster.links[1].bandwidth_bytes_per_s = 1e8;
  const Alternative replicas = AlternativesOf(request).Of(AlternativeKind::kSiteReplicas);
  REQUIRE(replicas.found());
  REQUIRE(replicas.shares.size() == 2);
  CHECK(replicas.shares[0].site == "north");
  CHECK(replicas.shares[1].site == "east");

  if (kSanitized) {
    return;  // the same code, asked once more
  }
  request = ComparedRequest();
  request.cluster.sites[2].device.memory_bytes = 6 * test::kGiB;
  const Alternative small = AlternativesOf(request).Of(AlternativeKind::kSiteReplicas);
  REQUIRE(small.shares.size() == 2);
  CHECK(small.shares[1].site == "east");
}

TEST_CASE("of many sites one after the other is left out as long as that helps") {
  PlanRequest request = ComparedRequest();
  const SiteSpec like = request.cluster.sites.front();
  request.cluster.sites.clear();
  request.cluster.links.clear();
  request.job.placement.sites.clear();
  for (const std::string name : {"hub", "a", "b", "c", "d", "e", "f"}) {
    request.cluster.sites.push_back(like);
    request.cluster.sites.back().name = name;
    if (name != "hub") {
      request.cluster.links.push_back({"hub", name, test::kMillisecond, name == "b" || name == "e" ? 2e7 : 1e11});
    }
  }
  SitePlanner sites(request);
  const Alternatives alternatives = FindAlternatives(sites, request.cluster, nullptr);
  CHECK(alternatives.Of(AlternativeKind::kPipeline).missing == "no plan was found");
  const Alternative& replicas = alternatives.Of(AlternativeKind::kSiteReplicas);
  CHECK(replicas.SitesText() == "5 sites");
  CHECK(replicas.reduction->sites == std::vector<std::string>{"hub", "a", "c", "d", "f"});
  int64_t tokens = 0;
  for (const SiteShare& share : replicas.shares) {
    tokens += share.tokens;  // no fifth of them is whole
  }
  CHECK(tokens == 1 << 20);
}

TEST_CASE("among a plan's baselines stand the same replicas and the same single site") {
  const PlanRequest request = ComparedRequest();
  PlanResult plan = *MakePlan(request);
  const Alternatives alternatives = AlternativesOf(request);
  const auto of = [&](BaselineScope scope) { return std::ranges::count(plan.baselines, scope, &Baseline::scope); };
  CHECK(of(BaselineScope::kSiteReplicas) == 0);
  PutAmongBaselines(alternatives, plan);
  CHECK(of(BaselineScope::kSiteReplicas) == 1);
  CHECK(of(BaselineScope::kSingleSite) == 1);
  const Baseline& replicas = *std::ranges::find(plan.baselines, BaselineScope::kSiteReplicas, &Baseline::scope);
  CHECK(replicas.iteration_ns == alternatives.Of(AlternativeKind::kSiteReplicas).iteration_ns);
  CHECK(replicas.site == "north,east,west");
  CHECK(replicas.bubble_ratio > 0);
  CHECK(replicas.bubble_ratio < 1);
  CHECK(plan.baselines.back().iteration_ns == alternatives.Of(AlternativeKind::kSingleSite).iteration_ns);
}

TEST_CASE("a single site that has been planned as an alternative is not planned for the baselines as well") {
  PlanRequest request = ComparedRequest();
  const auto singles = [](const PlanResult& plan) {
    return std::ranges::count(plan.baselines, BaselineScope::kSingleSite, &Baseline::scope);
  };
  request.single_site = false;
  PlanResult plan = *MakePlan(request);
  CHECK(singles(plan) == 0);
  CHECK(plan.baselines.size() == 8);  // the schedules, as ever
  PutAmongBaselines(AlternativesOf(request), plan);
  CHECK(singles(plan) == 1);

  request.job.placement.sites = {"north"};
  request.job.parallelism.pipeline = 0;
  PlanResult alone = *MakePlan(request);
  CHECK(singles(alone) == 0);
  SitePlanner sites(request);
  PutAmongBaselines(FindAlternatives(sites, request.cluster, &alone), alone);
  REQUIRE(singles(alone) == 1);
  CHECK(alone.baselines.back().iteration_ns == alone.prediction.iteration_ns);
  CHECK(alone.baselines.back().site == "north");
  CHECK(alone.baselines.back().bubble_ratio == Approx(alone.prediction.bubble_ratio));
}

}  // namespace
}  // namespace geopipe
