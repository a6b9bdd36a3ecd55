#include "coordinator/cli/playground/playground_compare.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("variants are schedules with a mode or ΔN, and keep what is common") {
  RunOptions common;
  common.pace = true;
  common.stop_after_iterations = 7;
  const auto variants = ParseVariants("1f1b:blocking,1f1b,geopipe,geopipe:1/0,geopipe:2:blocking", common);
  REQUIRE(variants.ok());
  REQUIRE(variants->size() == 5);
  CHECK((*variants)[0].run.schedule == ScheduleKind::kOneFOneB);
  CHECK((*variants)[0].run.comm == CommMode::kBlocking);
  CHECK((*variants)[0].suffix == "1f1b-blocking");
  CHECK((*variants)[1].run.comm == CommMode::kNonBlocking);
  CHECK((*variants)[2].run.delta_n.empty());
  CHECK((*variants)[3].run.delta_n == std::vector<int32_t>{1, 0});
  CHECK((*variants)[3].suffix == "geopipe-1-0");
  CHECK((*variants)[4].run.delta_n == std::vector<int32_t>{2});
  CHECK((*variants)[4].run.comm == CommMode::kBlocking);
  CHECK(ParseVariants("zb-h1,geopipe-zb:1", common).value()[1].run.delta_n == std::vector<int32_t>{1});
  for (const PlaygroundVariant& variant : *variants) {
    CHECK(variant.run.pace);
    CHECK(variant.run.stop_after_iterations == 7);
  }
}

TEST_CASE("variants that mean nothing are refused by name") {
  const auto message = [](const std::string& text) {
    const auto variants = ParseVariants(text, {});
    REQUIRE(variants.status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(variants.status().message());
  };
  CHECK(message("1f1b").find("two variants or more") != std::string::npos);
  CHECK(message("1f1b,,geopipe").find("variant ''") != std::string::npos);
  CHECK(message("1f1b,2f2b").find("variant '2f2b'") != std::string::npos);
  CHECK(message("1f1b,1f1b:2").find("ΔN belongs to geopipe, geopipe-zb") != std::string::npos);
  CHECK(message("1f1b,zb-v:2").find("variant 'zb-v:2': '2' is not nonblocking, blocking; ΔN belongs to geopipe") !=
        std::string::npos);
  CHECK(message("1f1b,geopipe:rendezvous").find("'rendezvous' is not") != std::string::npos);
  CHECK(message("1f1b,geopipe:1/0,geopipe:1:0").find("given twice") != std::string::npos);
}

VariantReport Run(const std::string& label, v1::ScheduleKind schedule, int64_t predicted_ns, int64_t measured_ns,
                  double loss) {
  VariantReport variant{.label = label, .report = {}};
  v1::JobDetail& detail = variant.report.detail;
  detail.mutable_run()->set_backend(v1::BACKEND_KIND_CPU);
  detail.mutable_plan()->set_schedule(schedule);
  detail.mutable_plan()->add_delta_n(schedule == v1::SCHEDULE_KIND_GEOPIPE ? 2 : 0);
  detail.mutable_prediction()->set_iteration_ns(predicted_ns);
  detail.mutable_prediction()->set_bubble_ratio(0.25);
  detail.mutable_measured()->set_iteration_ns(measured_ns);
  detail.mutable_measured()->set_bubble_ratio(0.5);
  v1::IterationSummary& iteration = variant.report.iterations.emplace_back();
  iteration.set_loss(loss);
  return variant;
}

TEST_CASE("the table compares with the first variant") {
  const std::vector<VariantReport> reports{
      Run("1f1b:blocking", v1::SCHEDULE_KIND_ONE_F_ONE_B, 1'000'000'000, 1'020'000'000, 5.5),
      Run("geopipe", v1::SCHEDULE_KIND_GEOPIPE, 500'000'000, 510'000'000, 5.5),
      Run("other", v1::SCHEDULE_KIND_GPIPE, 500'000'000, 510'000'000, 5.5000000000000009)};
  const std::string table = ComparisonTable(reports);
  INFO(table);
  CHECK(table.find("+2.0 %") != std::string::npos);
  CHECK(table.find("2.00x") != std::string::npos);
  CHECK(table.find("equal") != std::string::npos);
  CHECK(table.find("DIFFER") != std::string::npos);
  CHECK(table.find("hypervisor") == std::string::npos);
}

TEST_CASE("a run during which processors were stolen is told from the others") {
  std::vector<VariantReport> reports{Run("1f1b", v1::SCHEDULE_KIND_ONE_F_ONE_B, 1'000'000'000, 1'020'000'000, 5.5),
                                     Run("geopipe", v1::SCHEDULE_KIND_GEOPIPE, 500'000'000, 510'000'000, 5.5)};
  reports[0].report.stolen_share = 0.019;
  reports[1].report.stolen_share = 0.042;
  const std::string table = ComparisonTable(reports);
  INFO(table);
  CHECK(table.find("\n1f1b: ") == std::string::npos);
  CHECK(table.find("\ngeopipe: 4.2 % of the processor time this host wanted went to other guests") !=
        std::string::npos);

  RunReport report;
  CHECK_FALSE(RunReportToJson(report)->contains("stolen_share"));  // not known
  report.stolen_share = 0.042;
  CHECK((*RunReportToJson(report))["stolen_share"] == 0.042);
}

}  // namespace
}  // namespace geopipe
