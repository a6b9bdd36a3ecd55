#include "optimizer/plan/space/fastest_costs.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "optimizer/model/plan/plan_costs.h"
#include "tests/optimizer/plan/jobs.h"

namespace geopipe {
namespace {

TEST_CASE("no places of a stage's replicas cost less than the fastest") {
  JobSpec job = test::Llama13bJob();
  job.parallelism.tensor = 2;
  job.parallelism.data = 3;
  ClusterSpec cluster = test::ThreeRegions();
  SiteSpec& site = cluster.sites[0];
  site.network = {.bandwidth_bytes_per_s = 2e9, .latency_ns = 5'000};
  const CostSource source(job, cluster, nullptr);
  // Three on a node, two and one, and one on each of three.
  const std::vector<std::array<int32_t, 3>> nodes_of_replicas{{0, 0, 0}, {0, 0, 1}, {0, 1, 2}};
  for (const int32_t zero_stage : {0, 1, 2, 3}) {
    CAPTURE(zero_stage);
    const ExecutionConfig config = MakeExecutionConfig(job, 1, 2048, Recompute::kNone, zero_stage);
    const std::optional<ModelCosts> fastest = FastestCosts(job.model, source, config, site);
    REQUIRE(fastest.has_value());
    std::optional<PartCosts> least;
    for (const std::array<int32_t, 3>& nodes : nodes_of_replicas) {
      Plan plan;
      plan.micro_batch_size = 1;
      plan.sequence_length = 2048;
      plan.micro_batches = 1;
      plan.zero_stage = zero_stage;
      plan.grid.tensor = 2;
      plan.grid.data = 3;
      std::vector<DevicePlace> places;
      for (int32_t replica = 0; replica < 3; ++replica) {
        places.push_back({.node = nodes[replica], .device = 2 * replica});
        places.push_back({.node = nodes[replica], .device = 2 * replica + 1});
      }
      plan.Append({.site = "north", .capacity_bytes = 1},
                  {.first = 0, .last = 39, .has_embedding = true, .has_head = true}, places);
      const PartCosts block = PartsOfPlan(job, cluster, source, plan)->stages[0].costs.block;
      CHECK(fastest->block.forward_ns <= block.forward_ns);
      CHECK(fastest->block.input_grad_ns <= block.input_grad_ns);
      CHECK(fastest->block.weight_grad_ns <= block.weight_grad_ns);
      const auto whole = [](const PartCosts& part) {
        return part.forward_ns + part.input_grad_ns + part.weight_grad_ns;
      };
      least = !least.has_value() || whole(block) < whole(*least) ? block : *least;
    }
    CHECK(fastest->block == *least);
  }
}

}  // namespace
}  // namespace geopipe
