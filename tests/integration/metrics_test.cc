// Tests what Prometheus sees of a run while it goes on, from all three kinds of process.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/run_scrape.h"
#include "tests/support/command.h"
#include "tests/support/durations.h"
#include "tests/support/scrape.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;
using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kProcesses = 7;  // coordinator, three agents, three workers
constexpr double kTokensPerIteration = 512;
constexpr double kLatencySeconds = 0.02;

// A figure that goes up with each iteration may be one ahead of the count that was read before it.
void CheckCounts(const std::string& text, const std::string& name, const Labels& labels, double iterations,
                 double each) {
  const double value = SeriesValue(text, name, labels).value_or(-1);
  INFO(name << " " << value << " after " << iterations << " iterations");
  CHECK((value == iterations * each || value == (iterations + 1) * each));
}

void CheckLoss(double loss, const Json& report, double iterations) {
  const auto count = static_cast<size_t>(iterations);
  INFO(loss << " after " << count << " iterations of " << report["iterations"].size());
  REQUIRE(count >= 1);
  REQUIRE(count < report["iterations"].size());  // it was in mid-run
  CHECK((loss == Approx(report["iterations"][count - 1]["loss"].get<double>()).epsilon(1e-12) ||
         loss == Approx(report["iterations"][count]["loss"].get<double>()).epsilon(1e-12)));
}

void CheckCoordinator(const std::string& text, const Json& report) {
  const Labels job = {{"training_job", "mini"}};
  const double iterations = SeriesValue(text, "geopipe_iterations_total", job).value_or(0);
  CheckLoss(SeriesValue(text, "geopipe_loss", job).value_or(-1), report, iterations);
  CheckCounts(text, "geopipe_tokens_total", job, iterations, kTokensPerIteration);
  CheckCounts(text, "geopipe_iteration_seconds_count", job, iterations, 1);
  CHECK(SeriesValue(text, "geopipe_predicted_iteration_seconds", job) ==
        Approx(report["predicted"]["iteration_s"].get<double>()));
  CHECK(SeriesValue(text, "geopipe_bubble_ratio", job).value_or(-1) >= 0);
  CHECK(SeriesValue(text, "geopipe_jobs", {{"state", "RUNNING"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_agents_connected") == 3);
  for (const char* site : {"north", "east", "west"}) {
    CHECK(SeriesValue(text, "geopipe_agent_heartbeats_total", {{"site", site}}).value_or(0) > 0);
  }
  CHECK(SeriesValue(text, "geopipe_rpc_seconds_count", {{"method", "ApplyJob"}, {"code", "OK"}}) == 1);
}

void CheckAgent(const std::string& text) {
  CHECK(SeriesValue(text, "geopipe_coordinator_connected") == 1);
  CHECK(SeriesValue(text, "geopipe_workers") == 1);
  CHECK(SeriesValue(text, "geopipe_worker_exits_total", {{"outcome", "signal"}}) == 0);
  const bool north = SeriesValue(text, "geopipe_workers", {{"site", "north"}}).has_value();
  const Labels link = {{"to_site", north ? "east" : "north"}};
  CHECK(SeriesValue(text, "geopipe_link_latency_seconds", link) == Approx(kLatencySeconds));
  CHECK(SeriesValue(text, "geopipe_link_bandwidth_bytes_per_second", link) == Approx(1e9 / 8));
}

void CheckWorker(const std::string& text, const Json& report) {
  const double iterations = SeriesValue(text, "geopipe_rank_iterations_total").value_or(0);
  REQUIRE(iterations >= 1);
  CheckCounts(text, "geopipe_rank_iteration_seconds_count", {}, iterations, 1);
  CHECK(SeriesValue(text, "geopipe_stage_action_seconds_sum", {{"action", "forward"}}).value_or(0) > 0);
  CHECK(SeriesValue(text, "geopipe_rank_busy_seconds_total").value_or(0) > 0);
  CHECK(SeriesValue(text, "geopipe_memory_bytes", {{"category", "weights"}}).value_or(0) > 0);
  CHECK(SeriesValue(text, "geopipe_memory_peak_bytes", {{"category", "activations"}}).value_or(0) > 0);
  const bool east = SeriesValue(text, "geopipe_build_info", {{"site", "east"}}).has_value();
  const std::string here = east                                                          ? "east"
                           : SeriesValue(text, "geopipe_build_info", {{"site", "west"}}) ? "west"
                                                                                         : "north";
  const std::string there = east ? "north" : "east";
  CHECK(SeriesValue(text, "geopipe_link_sent_bytes_total", {{"from_site", here}, {"to_site", there}}).value_or(0) > 0);
  CHECK(SeriesValue(text, "geopipe_link_received_bytes_total", {{"from_site", there}, {"to_site", here}}).value_or(0) >
        0);
  CHECK(SeriesValue(text, "geopipe_link_round_trip_seconds", {{"to_site", there}}).value_or(0) >= 2 * kLatencySeconds);
  CHECK(SeriesValue(text, "geopipe_transport_frames_sent_total").value_or(0) > 0);
  CHECK(SeriesValue(text, "geopipe_transport_frames_refused_total") == 0);
  CHECK(SeriesValue(text, "geopipe_link_corrupt_frames_total", {{"from_site", there}, {"to_site", here}}) == 0);
  if (const std::optional<double> loss = SeriesValue(text, "geopipe_rank_loss", {{"rank", "2"}})) {
    CheckLoss(*loss, report, iterations);
  } else {
    CHECK(here != "west");
  }
}

// A run of forty iterations, scraped in its midst.
std::vector<Scraped> ScrapedRun(Json* report) {
  const absl::StatusOr<TempFolder> folder = TempFolder::Create("geopipe-test-");
  REQUIRE(folder.ok());
  Command playground("geopipectl",
                     {"playground", "--job", SourcePath("tests/golden/jobs/mini.yaml"), "--sites", "3", "--link",
                      "latency=20ms,bandwidth=1Gbps", "--output", folder->path().string(), "-o", "json"});
  const std::vector<Scraped> processes = ScrapeInMidRun(playground, kProcesses, 5);
  const CommandResult result = playground.Finish(120 * kSecond);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  *report = Json::parse(result.out);
  return processes;
}

TEST_CASE("all processes of a run can be scraped in its midst, and what they say agrees with its report") {
  Json report;
  const std::vector<Scraped> processes = ScrapedRun(&report);
  REQUIRE(report["iterations"].size() == 40);
  for (const Scraped& process : processes) {
    INFO(process.program << " at " << process.address << ":\n" << process.text);
    CHECK(SeriesValue(process.text, "geopipe_build_info", {{"program", process.program}}) == 1);
    if (process.program == "geopipe-coordinator") {
      CheckCoordinator(process.text, report);
    } else if (process.program == "geopipe-agent") {
      CheckAgent(process.text);
    } else {
      CheckWorker(process.text, report);
    }
    CHECK(PromtoolFindings(process.text).value_or("") == "");  // tests/runtime/base says when there is no promtool
  }
}

}  // namespace
}  // namespace geopipe
