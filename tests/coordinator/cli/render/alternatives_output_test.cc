#include "coordinator/cli/render/alternatives_output.h"

#include <catch2/catch.hpp>
#include <string>

#include "coordinator/cli/render/winner_map.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

using test::kMillisecond;

SiteShare ShareOf(const std::string& site, int64_t tokens) {
  SiteShare share{.site = site, .tokens = tokens, .plan = {}, .prediction = {}};
  share.plan.micro_batch_size = 2;
  share.plan.sequence_length = 1024;
  share.plan.micro_batches = static_cast<int32_t>(tokens / 2048);
  share.plan.grid = {.pipeline = 0, .data = 1, .tensor = 1};
  share.plan.Append({.site = site, .peak_bytes = 3 * test::kGiB, .capacity_bytes = 4 * test::kGiB},
                    {.first = 0, .last = 3, .has_embedding = true, .has_head = true});
  share.prediction.iteration_ns = 700 * kMillisecond;
  return share;
}

PlanResult PlanOfTwo() {
  PlanResult result;
  result.plan.pipeline_ranks = {{.site = "north"}, {.site = "east"}};
  result.prediction.iteration_ns = 1000 * kMillisecond;
  return result;
}

Alternatives Four() {
  const SiteReduction reduction{.way = ReductionWay::kTree,
                                .sites = {"north", "east"},
                                .root = "north",
                                .links = {{"north", "east"}},
                                .bandwidth_bytes_per_s = 1e9,
                                .latency_ns = 20 * kMillisecond};
  Alternatives alternatives;
  alternatives.all = {{.kind = AlternativeKind::kSingleSite,
                       .shares = {ShareOf("north", 8192)},
                       .iteration_ns = 2000 * kMillisecond,
                       .tokens_per_s = 4096,
                       .devices = 1},
                      {.kind = AlternativeKind::kPipeline,
                       .is_plan = true,
                       .iteration_ns = 1000 * kMillisecond,
                       .tokens_per_s = 8192,
                       .wan_bytes_per_iteration = int64_t{3} << 20,
                       .devices = 2},
                      {.kind = AlternativeKind::kSiteReplicas,
                       .shares = {ShareOf("north", 6144), ShareOf("east", 2048)},
                       .iteration_ns = 800 * kMillisecond,
                       .tokens_per_s = 10240,
                       .wan_bytes_per_iteration = int64_t{2} << 30,
                       .devices = 2,
                       .reduction = reduction,
                       .reduced_bytes = int64_t{1} << 30,
                       .reduction_ns = 300 * kMillisecond,
                       .exposed_ns = 100 * kMillisecond}};
  Alternative local = alternatives.all.back();
  local.kind = AlternativeKind::kLocalSteps;
  local.iteration_ns = 705 * kMillisecond;
  local.reduced_bytes = int64_t{2} << 30;
  local.reduction_ns = 500 * kMillisecond;
  alternatives.all.push_back(local);
  return alternatives;
}

TEST_CASE("of replicas at many sites equal shares are told together") {
  Alternatives alternatives = Four();
  std::vector<SiteShare>& shares = alternatives.all[2].shares;
  shares.clear();
  for (int i = 0; i < 9; ++i) {
    shares.push_back(ShareOf("s" + std::to_string(i), i == 3 ? 2048 : 1024));
  }
  CHECK_THAT(AlternativesText(alternatives, PlanOfTwo()),
             Catch::Contains("replicas      tokens: 20.0 % at s3, 10.0 % at each of 8 sites\n"));
}

TEST_CASE("the alternatives stand side by side, and one that is faster and the same training is told") {
  const std::string text = AlternativesText(Four(), PlanOfTwo());
  CHECK(text ==
        "ALTERNATIVE                         SITES       ITERATION  TOKENS/S  AGAINST       WAN  DEVICES\n"
        "single site                         north         2.000 s     4,096   2.00 ×       0 B        1\n"
        "pipeline over sites (this plan)     north,east    1.000 s     8,192   1.00 ×  3.00 MiB        2\n"
        "replica per site                    north,east     800 ms    10,240   0.80 ×  2.00 GiB        2\n"
        "local steps (changes the training)  north,east     705 ms    10,240   0.70 ×  2.00 GiB        2\n"
        "replicas      tokens: north 75.0 %, east 25.0 %\n"
        "              1.00 GiB of gradients over a tree of links from north: 300 ms, 100 ms of it exposed\n"
        "local steps   changes of the weights (2.00 GiB; fp32), averaged every 100 iterations in 500 ms;\n"
        "              this changes the training and is never chosen\n"
        "faster        a replica at each of north, east takes 800 ms, 20.0 % less; equivalent training, "
        "not supported by the runtime yet\n");
}

TEST_CASE("local steps alone are no reason to call anything faster") {
  Alternatives alternatives = Four();
  alternatives.all[2].iteration_ns = 1100 * kMillisecond;
  CHECK_THAT(AlternativesText(alternatives, PlanOfTwo()), !Catch::Contains("faster"));
  alternatives.all[0].iteration_ns = 500 * kMillisecond;
  CHECK_THAT(AlternativesText(alternatives, PlanOfTwo()),
             Catch::Contains("\nfaster        north alone takes 500 ms, 50.0 % less; equivalent training, planned with "
                             "placement: {sites: [north]} and pipeline: auto\n"));
}

TEST_CASE("what is missing has no figures but a reason, which is told once") {
  Alternatives alternatives = Four();
  alternatives.all[2] = {.kind = AlternativeKind::kSiteReplicas, .missing = "too small"};
  alternatives.all[3] = alternatives.all[2];
  alternatives.all[3].kind = AlternativeKind::kLocalSteps;
  const std::string text = AlternativesText(alternatives, PlanOfTwo());
  CHECK_THAT(text, Catch::Contains("\nreplica per site                    -                   -"));
  CHECK_THAT(text, Catch::EndsWith("\nno replica per site: too small\n"));
}

TEST_CASE("every row has the whole plan of every site") {
  const std::string text = AlternativesText(Four(), PlanOfTwo(), Rows::kAll);
  CHECK_THAT(text, Catch::Contains("\nsingle site at north: 8,192 tokens in 700 ms\n"));
  CHECK_THAT(text, Catch::Contains("\nreplica per site at east: 2,048 tokens in 700 ms\n"
                                   "geopipe, 1 micro-batches of 2 × 1024 tokens, nonblocking, recompute none\n"
                                   "tensor 1, pipeline 1, data 1\nSTAGE  SITE"));
  CHECK_THAT(text, !Catch::Contains("local steps at"));
}

TEST_CASE("as JSON each alternative has its sites' plans and its reduction") {
  const Json json = AlternativesToJson(Four(), PlanOfTwo());
  REQUIRE(json.size() == 4);
  CHECK(json[0]["kind"] == "single-site");
  CHECK(json[1]["is_plan"] == true);
  CHECK(json[1]["sites"].empty());
  const Json& replicas = json[2];
  CHECK(replicas["iteration_s"] == 0.8);
  CHECK(replicas["against_plan"] == 0.8);
  CHECK(replicas["changes_training"] == false);
  CHECK(replicas["sites"][1]["site"] == "east");
  CHECK(replicas["sites"][1]["tokens"] == 2048);
  CHECK(replicas["sites"][1]["plan"]["stages"][0]["peak_bytes"] == 3 * test::kGiB);
  CHECK(replicas["sites"][1]["predicted"]["iteration_s"] == 0.7);
  CHECK(replicas["reduction"]["root"] == "north");
  CHECK(replicas["reduction"]["links"] == Json::array({{"north", "east"}}));
  CHECK(replicas["reduction"]["exposed_s"] == 0.1);
  CHECK(json[3]["changes_training"] == true);
  CHECK(json[3]["reduction"]["every"] == 100);
}

// A point at a bandwidth in bytes per second, with these times in seconds; 0: the alternative is missing.
SweepPoint PointOf(std::vector<double> at, double single_s, double pipeline_s, double replicas_s) {
  SweepPoint point{.at = std::move(at), .results = {}, .alternatives = Alternatives()};
  AlternativeKind kind = AlternativeKind::kSingleSite;
  for (const double seconds : {single_s, pipeline_s, replicas_s, 0.01}) {
    point.alternatives->all.push_back(
        {.kind = kind, .missing = seconds == 0 ? "none" : "", .iteration_ns = static_cast<int64_t>(seconds * 1e9)});
    kind = static_cast<AlternativeKind>(static_cast<int>(kind) + 1);
  }
  return point;
}

TEST_CASE("along one axis each alternative has a column, and the fastest its range") {
  Sweep sweep;
  sweep.axes = {{SweepKey::kBandwidth, {1.25e8, 1.25e9, 1.25e10, 1.25e11}}};
  sweep.points = {PointOf({1.25e8}, 2, 3, 30), PointOf({1.25e9}, 2, 1.5, 4), PointOf({1.25e10}, 2, 1.25, 1.5),
                  PointOf({1.25e11}, 2, 0, 1)};
  CHECK(
      WinnersText(sweep) ==
      "alternatives, and what the fastest saves against the next; local steps change the training and do not compete\n"
      "BANDWIDTH  SINGLE SITE  PIPELINE  REPLICAS  LOCAL STEPS  FASTEST               SAVES\n"
      "   1 Gbps      2.000 s   3.000 s  30.000 s      10.0 ms  single site          33.3 %\n"
      "  10 Gbps      2.000 s   1.500 s   4.000 s      10.0 ms  pipeline over sites  25.0 %\n"
      " 100 Gbps      2.000 s   1.250 s   1.500 s      10.0 ms  pipeline over sites  16.7 %\n"
      "   1 Tbps      2.000 s         -   1.000 s      10.0 ms  replica per site     50.0 %\n"
      "fastest: single site up to 1 Gbps, pipeline over sites from 10 Gbps to 100 Gbps, replica per site from 1 Tbps "
      "on\n");
}

TEST_CASE("over two axes a letter a point shows the fastest, small where its lead is") {
  Sweep sweep;
  sweep.axes = {{SweepKey::kLatency, {1e6, 2e7}}, {SweepKey::kBandwidth, {1.25e8, 1.25e9, 1.25e10}}};
  sweep.points = {PointOf({1e6, 1.25e8}, 2, 3, 30),    PointOf({1e6, 1.25e9}, 2, 1.5, 4),
                  PointOf({1e6, 1.25e10}, 2, 1.5, 1),  PointOf({2e7, 1.25e8}, 0, 0, 0),
                  PointOf({2e7, 1.25e9}, 2, 1.992, 4), PointOf({2e7, 1.25e10}, 2, 1, 1.5)};
  CHECK(
      WinnersText(sweep) ==
      "fastest: P pipeline over sites, R replica per site, S single site, . none; a small letter: by less than 1 %\n"
      "latency of every link, one way, ms\n"
      "20 ms  . p P\n"
      " 1 ms  S P R\n"
      "       1   100\n"
      "       bandwidth of every link, Gbps\n"
      "fastest of 6 points: single site at 1, pipeline over sites at 3, replica per site at 1; local steps change the "
      "training and do not compete\n");
}

TEST_CASE("a map is never wider than 100 columns") {
  for (const int32_t steps : {13, 45, 60, 100, 200}) {
    Sweep sweep;
    sweep.axes = {{SweepKey::kLatency, {1e6}}, MakeSweepAxis(SweepKey::kBandwidth, 1.25e8, 1.25e11, steps).value()};
    for (const double bandwidth : sweep.axes[1].values) {
      sweep.points.push_back(PointOf({1e6, bandwidth}, 2, 3, 30));
    }
    const std::string text = WinnersText(sweep);
    INFO(text);
    size_t line = text.find("one way, ms");
    for (int i = 0; i < 3; ++i) {
      const size_t begin = text.find('\n', line) + 1;
      line = begin;
      CHECK(text.find('\n', begin) - begin <= 100);
    }
    CHECK((text.find("points of bandwidth)") != std::string::npos) == (steps > 93));
  }
}

TEST_CASE("a sweep without alternatives has no map") { CHECK(WinnersText(Sweep()).empty()); }

}  // namespace
}  // namespace geopipe
