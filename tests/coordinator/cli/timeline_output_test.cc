#include "coordinator/cli/timeline_output.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("a plan's timeline is labelled with its sites and nodes") {
  Plan plan;
  plan.micro_batch_size = 4;
  plan.sequence_length = 2048;
  plan.delta_n = {2};
  plan.grid.data = 2;
  plan.Append({.site = "north"}, {}, 0);
  plan.Append({.site = "north"}, {}, 1);
  plan.Append({.site = "east"}, {}, 0);
  const TimelineLabels labels = LabelsOfPlan(plan, 7);
  CHECK(labels.title == "geopipe, ΔN 2, nonblocking, 4 × 2048 tokens");
  CHECK(labels.lower_bound_ns == 7);
  CHECK(BeginsSite(labels, 2));
  CHECK_FALSE(BeginsSite(labels, 1));
  CHECK(DeviceNames(labels, 3) == std::vector<std::string>{"pipeline rank 0 (north, node 0)",
                                                           "pipeline rank 1 (north, node 1)",
                                                           "pipeline rank 2 (east, node 0)"});
  PipelineCosts costs;  // what each of two pipelines has of the link
  costs.shape = PipelineShape::Linear(3, 1);
  costs.boundaries.resize(2);
  costs.boundaries[1] = {
      .crosses = true, .link = {}, .message_bytes = 1000, .latency_ns = 20'000'000, .serialization_ns = 1000};
  CHECK(CrossingText(costs, labels, 2) == "20 ms, 16 Gbps");
  CHECK(CrossingText(costs, labels, 1).empty());
}

}  // namespace
}  // namespace geopipe
