#include "coordinator/cli/render/plan_output.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/cli/render/format.h"

namespace geopipe {
namespace {

Plan TwoStages() {
  Plan plan;
  plan.schedule = ScheduleKind::kGeoPipe;
  plan.micro_batch_size = 4;
  plan.sequence_length = 128;
  plan.delta_n = {2};
  plan.micro_batches = 8;
  plan.grid.tensor = 4;
  plan.Append({.site = "north", .peak_bytes = 1'000, .capacity_bytes = 4'000}, {0, 3, true, false});
  plan.Append({.site = "east"}, {4, 5, false, true}, 1);
  plan.idle = {{"east", 1, {1, 2, 3}}};
  return plan;
}

TEST_CASE("the JSON of a plan has the keys of the contract") {
  const Json json = PlanToJson(TwoStages());
  CHECK(json["schedule"] == "geopipe");
  CHECK(json["comm"] == "nonblocking");
  CHECK(json["micro_batch_size"] == 4);
  CHECK(json["sequence_length"] == 128);
  CHECK(json["delta_n"] == Json::array({2}));
  CHECK(json["micro_batches"] == 8);
  CHECK(json["recompute"] == "none");
  CHECK(json["zero_stage"] == 0);
  REQUIRE(json["stages"].size() == 2);
  CHECK(json["stages"][0]["index"] == 0);
  CHECK(json["stages"][0]["site"] == "north");
  CHECK(json["stages"][0]["layers"] == Json::array({0, 3}));
  CHECK(json["stages"][0]["devices"].size() == 4);
  CHECK(json["stages"][0]["peak_bytes"] == 1'000);
  CHECK(json["stages"][0]["capacity_bytes"] == 4'000);
}

TEST_CASE("seconds in JSON are the nearest doubles of the nanoseconds") {
  const Json json = PredictionToJson({.iteration_ns = 6'510'000'000, .bubble_ratio = 0.25, .lower_bound_ns = 1});
  CHECK(json["iteration_s"] == 6.51);
  CHECK(json["lower_bound_s"] == 1e-9);
  CHECK(json["bubble_ratio"] == 0.25);
}

TEST_CASE("people see stages, memory and what idles") {
  const std::string text = StageTable(TwoStages());
  CHECK(text.find("embedding, 0-3") != std::string::npos);
  CHECK(text.find("4-5, head") != std::string::npos);
  CHECK(text.find("25.0 %") != std::string::npos);
  CHECK(text.find("idle: site east, node 1, devices 1-3") != std::string::npos);
  CHECK(PlanHeadline(TwoStages()) == "geopipe, ΔN 2, 8 micro-batches of 4 × 128 tokens, nonblocking, recompute none");
  Plan replicated;
  replicated.grid.data = 2;
  replicated.zero_stage = 3;
  replicated.Append({.site = "north"}, {0, 3, true, true});
  CHECK(PlanHeadline(replicated).ends_with(", recompute none, ZeRO 3"));
  CHECK(PlanToJson(replicated)["zero_stage"] == 3);
}

TEST_CASE("idle nodes that follow each other share a line, and replicas on several nodes name them") {
  Plan plan = TwoStages();
  plan.idle = {{"east", 1, {1, 2}}, {"east", 2, {0, 1, 2, 3}}, {"east", 3, {0, 1, 2, 3}}, {"west", 4, {0, 1, 2, 3}}};
  plan.devices[2].node = plan.devices[3].node = 1;
  const std::string text = StageTable(plan);
  CHECK(text.find("idle: site east, node 1, devices 1,2\nidle: site east, nodes 2,3, devices 0-3\n"
                  "idle: site west, node 4, devices 0-3\n") != std::string::npos);
  CHECK(text.find("0,1  0,1; 2,3") != std::string::npos);
  CHECK(PlanToJson(plan)["stages"][0]["nodes"] == Json::array({0, 1}));
}

TEST_CASE("long tables are folded: what follows each other alike has one row") {
  Plan plan;
  plan.grid.tensor = 8;
  for (int32_t stage = 0; stage < 20; ++stage) {
    const bool first = stage == 0;
    const bool last = stage == 19;
    plan.Append({.site = stage < 12 ? "oslo" : "dublin", .peak_bytes = 1'000 + stage, .capacity_bytes = 4'000},
                {4 * stage, 4 * stage + 3, first, last}, stage % 12);
  }
  const std::string folded = StageTable(plan, Rows::kFolded);
  CHECK(std::ranges::count(folded, '\n') == 5);
  CHECK(folded.find("1-11  oslo    1-11") != std::string::npos);
  CHECK(folded.find("12-18  dublin   0-6") != std::string::npos);
  CHECK(folded.find("4-47, 4 each") != std::string::npos);
  CHECK(folded.find("48-75, 4 each") != std::string::npos);
  CHECK(folded.find("≤ 25.4 %") != std::string::npos);
  CHECK(std::ranges::count(StageTable(plan), '\n') == 21);

  PlanFigures figures;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "s" + std::to_string(i);
    figures.sites.push_back({name, 8, i == 0 ? 8 : 4, i == 0 ? "" : "no more"});
    if (i > 0) {
      figures.links.push_back({"s" + std::to_string(i - 1), name, 1024, 1e9, 0.5});
    }
  }
  const std::string text = FiguresText(figures, Rows::kFolded);
  CHECK(text.find("idle          4 of 8 devices at each of 5 sites (s1, s2, s3, s4, s5): no more\n") !=
        std::string::npos);
  CHECK(
      text.find(
          "crossing      each of 5 links (s0 and s1, s1 and s2, s2 and s3, s3 and s4, s4 and s5): 1.00 KiB each way") !=
      std::string::npos);
  const std::string all = FiguresText(figures);
  CHECK(all.find("each of") == std::string::npos);
  CHECK(std::ranges::count(all, '\n') == std::ranges::count(text, '\n') + 4 + 4);
}

TEST_CASE("ΔN is told where it means something, and a plan that was searched for is called so") {
  Plan plan = TwoStages();
  plan.schedule = ScheduleKind::kAuto;
  CHECK(PlanHeadline(plan).starts_with("made to measure, ΔN 2, 8 micro-batches"));
  plan.schedule = ScheduleKind::kOneFOneB;
  plan.delta_n = {0};
  CHECK(PlanHeadline(plan).starts_with("1f1b, 8 micro-batches"));
  plan.schedule = ScheduleKind::kAuto;
  plan.stages.push_back({.pipeline_rank = 0, .layers = {6, 6, false, false}});  // two stages on each rank
  plan.stages.push_back({.pipeline_rank = 1, .layers = {7, 7, false, true}});
  CHECK(PlanHeadline(plan).starts_with("made to measure, 8 micro-batches"));
}

TEST_CASE("a long list of ΔN is told in runs") {
  CHECK(FormatRuns(std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 2}) == "1,1,1,1,1,1,1,2");
  CHECK(FormatRuns(std::vector<int32_t>{0, 0, 1, 3, 3, 3, 3, 3, 3, 3}) == "0 × 2, 1, 3 × 7");
}

TEST_CASE("figures name what is used and what is not") {
  const PlanFigures figures{.model_flops = 1e18,
                            .flops_per_device_per_s = 4.76e14,
                            .mfu = 0.481,
                            .work_ns = 12'273'000'000,
                            .cluster_bound_ns = 14'086'000'000,
                            .above_cluster_bound = 0.0605,
                            .tokens_per_day = 2.37e10,
                            .iterations = 10'000,
                            .tokens = 40'960'000'000,
                            .job_s = 400'000,
                            .device_hours = 1'234.5,
                            .sites = {{"oslo", 128, 120, "there are no more"}, {"dublin", 128, 0, "no link"}},
                            .links = {{"oslo", "dublin", int64_t{64} << 30, 12.5e9, 0.359}}};
  CHECK(FiguresText(figures) ==
        "devices       120 of 256 in use, 476 TFLOP/s each, 48.1 % of their peak (MFU)\n"
        "idle          8 of 128 devices at oslo: there are no more\n"
        "left out      dublin with 128 devices: no link\n"
        "cluster bound 14.086 s: no plan for this job on this cluster takes less; this one takes 6.0 % more\n"
        "plain work    12.273 s on all devices at their stated efficiency\n"
        "job           10,000 iterations, 41.0 billion tokens, in 4.6 days: 1,234 device-hours\n"
        "crossing      oslo and dublin: 64.0 GiB each way per iteration, 35.9 % of 100 Gbps\n");
  CHECK(FiguresToJson(figures)["used"] == 120);
  CHECK(FiguresToJson(figures)["tokens"] == 40'960'000'000);
  CHECK(FiguresToJson(figures)["cluster_bound_s"] == 14.086);
  CHECK(FiguresToJson({})["mfu"].is_null());
  CHECK(FiguresToJson({})["cluster_bound_s"].is_null());
}

TEST_CASE("baselines are set against the plan") {
  const std::vector<Baseline> baselines{{.schedule = ScheduleKind::kOneFOneB,
                                         .comm = CommMode::kBlocking,
                                         .scope = BaselineScope::kSame,
                                         .site = "",
                                         .micro_batch_size = 1,
                                         .sequence_length = 2,
                                         .iteration_ns = 3'000'000'000}};
  CHECK(BaselineTable(baselines, 2'000'000'000).find("1.50 ×") != std::string::npos);
  CHECK(BaselinesToJson(baselines)[0]["iteration_s"] == 3.0);
}

SiteCostReport CalibratedNorth() {
  return {.site = "north",
          .origin = CostOrigin::kCalibrated,
          .measured_site = "north",
          .points = {{1, 128}, {2, 128}, {2, 64}},
          .residuals = {.points = 3,
                        .left_out = true,
                        .all = {{1, 128, ModelPart::kBlock, PartAction::kForward, 0.01},
                                {2, 128, ModelPart::kHead, PartAction::kWeightGrad, -0.06},
                                {2, 64, ModelPart::kEmbedding, PartAction::kInputGrad, 0.02}}}};
}

TEST_CASE("people see where costs come from") {
  CHECK(CostReportText({}, TwoStages()).empty());
  SiteCostReport measured = CalibratedNorth();
  measured.origin = CostOrigin::kMeasured;
  measured.points.push_back({4, 128});
  SiteCostReport corrected = CalibratedNorth();
  corrected.site = "new-south";
  corrected.origin = CostOrigin::kCorrected;
  corrected.residuals.left_out = false;
  SiteCostReport single = CalibratedNorth();
  single.points.resize(1);
  single.residuals.points = 1;
  CHECK(CostReportText({CalibratedNorth(), measured, corrected, single, {.site = "east", .measured_site = ""}},
                       TwoStages()) ==
        "costs         north      measured at b 1, s 128 and 2 more; b 4, s 128, recompute none from these: mean "
        "residual 3.0 %, greatest 6.0 % (head W at b 2, s 128); 2.0 times the most tokens measured\n"
        "              north      measured at b 4, s 128 and 3 more\n"
        "              new-south  as north, the same kind of device, is measured at b 1, s 128 and 2 more: mean "
        "residual 3.0 %, greatest 6.0 % (head W at b 2, s 128), both at points that the fit has seen; "
        "2.0 times the most tokens measured\n"
        "              north      measured at b 1, s 128; b 4, s 128, recompute none from this: one point shows no "
        "residual; 4.0 times the most tokens measured\n"
        "              east       from the figures of its device, not measured\n");
}

TEST_CASE("programs see where costs come from") {
  const Json rows = CostReportsToJson({CalibratedNorth(), {.site = "east", .measured_site = ""}});
  CHECK(rows[0]["site"] == "north");
  CHECK(rows[0]["source"] == "calibrated");
  CHECK(rows[0]["observations"] == 3);
  CHECK(rows[0]["mean_residual"].get<double>() == Approx(0.03));
  CHECK(rows[0]["greatest_residual"] == 0.06);
  CHECK(rows[0]["greatest_at"] ==
        Json{{"part", "head"}, {"action", "W"}, {"micro_batch_size", 2}, {"sequence_length", 128}});
  CHECK(rows[0]["left_out"] == true);
  CHECK_FALSE(rows[0].contains("measured_site"));
  CHECK(rows[1] == Json{{"site", "east"},
                        {"source", "analytic"},
                        {"observations", 0},
                        {"mean_residual", nullptr},
                        {"greatest_residual", nullptr}});
}

}  // namespace
}  // namespace geopipe
