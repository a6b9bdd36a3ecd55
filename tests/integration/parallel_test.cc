// Tensor and data parallelism inside sites, trained by real workers: what crosses between sites, and that whatever a
// plan may be trains the same.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"
#include "tests/integration/run_scrape.h"
#include "tests/support/durations.h"
#include "tests/support/scrape.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr int32_t kTensor = 2;
constexpr int32_t kData = 2;
constexpr double kMicroBatches = 8;                    // of each replica
constexpr double kMicroBatchBytes = 1 * 128 * 64 * 2;  // b x s x h in bf16

// Traffic that one worker has sent to the other site.
struct Crossing {
  double messages = 0;
  double bytes = 0;
  double all_bytes = 0;  // whatever else went there, headers and all
  double iterations = 0;
};

// Traffic of the workers of a site, by rank.
std::map<int, Crossing> Crossings(const std::vector<Scraped>& processes, const std::string& from, const std::string& to,
                                  const std::string& message) {
  std::map<int, Crossing> crossings;
  for (const Scraped& process : processes) {
    if (process.program != "geopipe-worker" ||
        !SeriesValue(process.text, "geopipe_build_info", {{"site", from}}).has_value()) {
      continue;
    }
    int rank = 0;
    while (!SeriesValue(process.text, "geopipe_rank_iterations_total", {{"rank", fmt::format("{}", rank)}})) {
      REQUIRE(++rank < 8);
    }
    const std::vector<std::pair<std::string, std::string>> labels{
        {"from_site", from}, {"to_site", to}, {"message", message}};
    INFO(process.text);
    // The pipeline's own peer alone: REQUIREd to be one series.
    Crossing& crossing = crossings[rank];
    crossing.messages = SeriesValue(process.text, "geopipe_boundary_messages_total", labels).value_or(0);
    crossing.bytes = SeriesValue(process.text, "geopipe_boundary_bytes_total", labels).value_or(0);
    crossing.all_bytes =
        SeriesValue(process.text, "geopipe_link_sent_bytes_total", {{"from_site", from}, {"to_site", to}}).value_or(0);
    crossing.iterations = SeriesValue(process.text, "geopipe_rank_iterations_total").value_or(0);
  }
  return crossings;
}

TEST_CASE("tensor 2 x data 2 x 2 sites in bf16: it trains, and each activation crosses once") {
  const TempFolder folder = TestFolder();
  Command playground("geopipectl", {"playground", "--job", SourcePath("deploy/examples/parallel.yaml"), "--topology",
                                    SourcePath("deploy/examples/two-boxes.yaml"), "--iterations", "40", "--output",
                                    folder.path().string(), "-o", "json"});
  // Coordinator, two agents, eight workers.
  const std::vector<Scraped> processes = ScrapeInMidRun(playground, 11, 5);
  const CommandResult result = playground.Finish(120 * kSecond);
  INFO(result.err);
  REQUIRE(result.exit_status.success());
  const Json report = Json::parse(result.out);
  CHECK(report["state"] == "COMPLETED");
  CHECK(report["plan"]["tensor"] == kTensor);
  CHECK(report["plan"]["data"] == kData);
  CHECK(report["plan"]["stages"].size() == 2);
  const std::vector<double> losses = GridLosses(report);
  REQUIRE(losses.size() == 40);
  CHECK(losses.back() < 0.75 * losses.front());

  for (const auto& [from, to, message] : {std::tuple("east", "west", "activation"), {"west", "east", "gradient"}}) {
    const std::map<int, Crossing> crossings = Crossings(processes, from, to, message);
    REQUIRE(crossings.size() == kTensor * kData);
    const int first = crossings.begin()->first;
    for (int replica = 0; replica < kData; ++replica) {
      double micro_batch_bytes = 0;
      for (int rank = first + replica * kTensor; rank < first + (replica + 1) * kTensor; ++rank) {
        const Crossing& crossing = crossings.at(rank);
        INFO("rank " << rank << ": " << crossing.messages << " messages, " << crossing.bytes << " bytes, "
                     << crossing.all_bytes << " on the link, after " << crossing.iterations << " iterations");
        CHECK(crossing.messages >= (crossing.iterations - 1) * kMicroBatches);
        CHECK(crossing.messages <= (crossing.iterations + 2) * kMicroBatches);
        micro_batch_bytes += crossing.bytes / crossing.messages;
        // Headers, acknowledgements and norms are all there is beside them.
        CHECK(crossing.all_bytes < 1.25 * crossing.bytes);
      }
      std::printf("%s to %s, replica %d: %.1f bytes of %ss for each micro-batch\n", from, to, replica,
                  micro_batch_bytes, message);
      CHECK(micro_batch_bytes == kMicroBatchBytes);
    }
  }
}

TEST_CASE(
    "what a plan may be trains the same: uneven layers, two stages on a rank, replicas over nodes, unequal sites") {
  const TempFolder folder = TestFolder();
  constexpr int64_t kIterations = 4;
  const std::string sites = WriteGridSites(folder, "equal", {{"east"}, {"west"}});
  const std::string unequal = WriteGridSites(folder, "unequal", {{"east"}, {"west", 2, 2}});
  const auto job = [&](const std::string& name, const std::string& parallelism) {
    return WriteGridJob(folder, {.name = name, .parallelism = parallelism});
  };
  const std::vector<double> alone = GridLosses(
      TrainGridJob(folder, WriteGridJob(folder, {.name = "alone", .parallelism = "pipeline: 1", .sites = "east"}),
                   WriteGridSites(folder, "single", {{"east", 1, 1}}), kIterations));

  const Json uneven = TrainGridJob(folder, job("uneven", "data: 2, pipeline: 4, zero_stage: 1"), sites, kIterations);
  REQUIRE(uneven["plan"]["stages"].size() == 4);
  CHECK(uneven["plan"]["stages"][0]["layers"] != uneven["plan"]["stages"][1]["layers"]);
  CheckSameLosses(uneven, alone);

  const std::string grid = job("grid", "tensor: 2, data: 2, pipeline: 2, zero_stage: 1");
  const Json plain = TrainGridJob(folder, grid, sites, kIterations);
  CheckSameLosses(plain, alone);
  const Json looped = TrainGridJob(folder, grid, sites, kIterations, {"--schedule", "zb-v"});
  REQUIRE(looped["plan"]["stages"].size() == 4);
  CHECK(looped["plan"]["stages"][3]["pipeline_rank"] == 0);
  CHECK(GridNumbers(looped) == GridNumbers(plain));
  const Json over_nodes = TrainGridJob(folder, grid, unequal, kIterations);
  bool spans_nodes = false;
  for (const Json& stage : over_nodes["plan"]["stages"]) {
    spans_nodes |= stage["nodes"].size() == 2;
  }
  CHECK(spans_nodes);
  CHECK(GridNumbers(over_nodes) == GridNumbers(plain));
}

TEST_CASE("degrees that the planner chooses for paced devices are trained") {
  const TempFolder folder = TestFolder();
  constexpr int64_t kIterations = 3;
  const std::string single = WriteGridSites(folder, "single", {{"east", 1, 1}});
  const std::vector<double> alone = GridLosses(
      TrainGridJob(folder, WriteGridJob(folder, {.name = "alone", .parallelism = "pipeline: 1", .sites = "east"}),
                   single, kIterations));
  const Json report = TrainGridJob(
      folder, WriteGridJob(folder, {.name = "auto", .parallelism = "tensor: auto, data: auto, pipeline: 2"}),
      WriteGridSites(folder, "equal", {{"east"}, {"west"}}), kIterations, {"--pace"});
  INFO(report["plan"].dump(1));
  CHECK(report["plan"]["data"].get<int>() > 1);
  CheckSameLosses(report, alone);
}

}  // namespace
}  // namespace geopipe
