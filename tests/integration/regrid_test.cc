// States that go from one grid of ranks to another through checkpoints.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

std::string CheckpointLines(const TempFolder& folder) {
  return fmt::format("  checkpoint: {{path: {}, every: 100, keep: 9}}\n", (folder.path() / "ckpt").string());
}

TEST_CASE("3 sites, 1 site, 2 sites of tensor 2 x data 2 x ZeRO 3, 2 sites of tensor 4: the losses of one run") {
  const TempFolder folder = TestFolder();
  const std::string single = WriteGridSites(folder, "single", {{"east", 1, 1}});
  const std::string pair = WriteGridSites(folder, "pair", {{"east"}, {"west"}});
  const std::string three = WriteGridSites(folder, "three", {{"east", 1, 1}, {"west", 1, 1}, {"north", 1, 1}});
  const std::vector<double> whole = GridLosses(TrainGridJob(
      folder, WriteGridJob(folder, {.name = "whole", .parallelism = "pipeline: 1", .sites = "east"}), single, 8));

  struct Part {
    GridJob job;
    std::string sites;
    int64_t ranks = 0;
  };
  const std::vector<Part> parts{
      {{.name = "three-sites", .parallelism = "pipeline: 3", .sites = "east, west, north"}, three, 3},
      {{.name = "one-site", .parallelism = "pipeline: 1", .sites = "east"}, single, 1},
      {{.name = "zero-three", .parallelism = "tensor: 2, data: 2, pipeline: 2, zero_stage: 3"}, pair, 8},
      {{.name = "tensor-four", .parallelism = "tensor: 4, pipeline: 2"}, pair, 8}};
  std::vector<double> losses;
  int64_t done = 0;
  for (Part part : parts) {
    INFO(part.job.name);
    part.job.more = CheckpointLines(folder);
    done += 2;
    const Json report = TrainGridJob(folder, WriteGridJob(folder, part.job), part.sites, done,
                                     done > 2 ? std::vector<std::string>{"--resume"} : std::vector<std::string>{});
    int64_t ranks = 0;
    for (const Json& stage : report["plan"]["stages"]) {
      ranks += std::ssize(stage["devices"]);
    }
    CHECK(ranks == part.ranks);
    CHECK(report["iterations"].front()["iteration"] == done - 2);
    const std::vector<double> of_part = GridLosses(report);
    losses.insert(losses.end(), of_part.begin(), of_part.end());
  }
  REQUIRE(losses.size() == whole.size());
  double farthest = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    INFO("iteration " << i);
    CHECK(losses[i] == Approx(whole[i]).epsilon(2e-5));
    farthest = std::max(farthest, std::abs(losses[i] / whole[i] - 1));
  }
  std::printf("losses over four grids are within %.1e of one run's\n", farthest);
}

TEST_CASE("a loss that is none on tensor and data ranks: iteration, stage and the last checkpoint are named") {
  const TempFolder folder = TestFolder();
  const std::string pair = WriteGridSites(folder, "pair", {{"east"}, {"west"}});
  const std::string job = WriteGridJob(
      folder, {.name = "diverging", .parallelism = "tensor: 2, data: 2, pipeline: 2", .more = CheckpointLines(folder)});
  TrainGridJob(folder, job, pair, 2);
  std::string text = ReadFile(job, 1 << 20).value();
  const std::string rate = "learning_rate: 5.0e-3";
  text.replace(text.find(rate), rate.size(), "learning_rate: 1.0e15");
  REQUIRE(WriteFileAtomically(job, text).ok());
  const CommandResult result = RunCommand("geopipectl", {"playground", "--job", job, "--topology", pair, "--iterations",
                                                         "8", "--resume", "--output", folder.path().string()});
  std::printf("%s", result.err.c_str());
  CheckEnded(result, 1, "error: job diverging FAILED: worker ",
             {": iteration 3, ", " on rank ", "; lower training.learning_rate", "; last checkpoint: iteration 2"});
}

}  // namespace
}  // namespace geopipe
