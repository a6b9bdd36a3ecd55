// Jobs on GPUs through the installed programs, where an emulated GPU stands behind the port
// (tests/support/gpu_emulator). They keep the pace of described devices, so that nobody has to measure one.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/integration/daemons.h"
#include "tests/integration/grid_job.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr int64_t kIterations = 3;

// A job of 256 tokens an iteration. The site east has four devices, west one.
Json Train(const std::string& backend, const GridJob& job, std::vector<std::string> more = {}) {
  const TempFolder folder = TestFolder();
  GridJob small = job;
  small.tokens_per_iteration = 256;
  more.insert(more.end(), {"--pace", "--backend", backend});
  if (backend == "cuda") {
    more.insert(more.end(), {"--gpu-library", GEOPIPE_BINARY_DIR "/bin/libgeopipe_cuda_emulated.so"});
  }
  INFO(job.parallelism);
  return TrainGridJob(folder, WriteGridJob(folder, small),
                      WriteGridSites(folder, "sites", {{.name = "east", .devices_per_node = 4}, {.name = "west"}}),
                      kIterations, more);
}

void CheckClose(const Json& report, const Json& processor) {
  REQUIRE(report["iterations"].size() == kIterations);
  for (size_t i = 0; i < kIterations; ++i) {
    for (const std::string number : {"loss", "grad_norm"}) {
      const double expected = processor["iterations"][i][number].get<double>();
      INFO(number << " of iteration " << i);
      CHECK(std::abs(report["iterations"][i][number].get<double>() - expected) <= 1e-5 * std::abs(expected));
    }
  }
}

TEST_CASE("jobs on GPUs have the processors' losses, and the same bits for every schedule, delta_n and split") {
  const GridJob whole{.name = "whole", .parallelism = "tensor: 1, data: 1, pipeline: 1", .sites = "east"};
  const Json on_gpu = Train("cuda", whole);
  CheckClose(on_gpu, Train("cpu", whole));
  const Json compared = Train("cuda", {.name = "split", .parallelism = "tensor: 1, data: 1, pipeline: 2"},
                              {"--compare", "1f1b:blocking,interleaved,zb-h1,zb-v,geopipe,geopipe-zb"});
  REQUIRE(compared["variants"].size() == 6);
  int64_t delta_n = 0;
  for (const Json& variant : compared["variants"]) {
    INFO(variant["variant"]);
    CHECK(GridNumbers(variant) == GridNumbers(on_gpu));
    delta_n = std::max(delta_n, variant["plan"]["delta_n"][0].get<int64_t>());
  }
  CHECK(delta_n > 0);
}

TEST_CASE("grids of GPUs have the processors' losses, and the same bits whatever they divide or make again") {
  const Json processor =
      Train("cpu", {.name = "one", .parallelism = "tensor: 1, data: 1, pipeline: 1", .sites = "east"});
  CheckClose(
      Train("cuda", {.name = "both", .parallelism = "pipeline: 1, tensor: 2, data: 2, zero_stage: 1", .sites = "east"}),
      processor);
  // Gradients are reduced after each micro-batch from stage 2 on, and once an iteration before.
  std::vector<std::string> numbers;
  for (const std::string divided :
       {"zero_stage: 0", "zero_stage: 1, recompute: selective", "zero_stage: 2", "zero_stage: 3, recompute: full"}) {
    const Json report = Train(
        "cuda", {.name = "replicas", .parallelism = "tensor: 1, pipeline: 1, data: 2, " + divided, .sites = "east"});
    CheckClose(report, processor);
    numbers.push_back(GridNumbers(report));
  }
  CHECK(numbers[1] == numbers[0]);
  CHECK(numbers[3] == numbers[2]);
}

}  // namespace
}  // namespace geopipe
