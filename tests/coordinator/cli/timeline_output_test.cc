#include "coordinator/cli/timeline_output.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("a plan's timeline is labelled with its sites and nodes") {
  Plan plan;
  plan.micro_batch_size = 4;
  plan.sequence_length = 2048;
  plan.delta_n = {2};
  plan.stages.resize(3);
  for (int32_t stage = 0; stage < 3; ++stage) {
    plan.stages[static_cast<size_t>(stage)].index = stage;
    plan.stages[static_cast<size_t>(stage)].site = stage < 2 ? "north" : "east";
    plan.stages[static_cast<size_t>(stage)].node = stage % 2;
  }
  const TimelineLabels labels = LabelsOfPlan(plan, 7);
  CHECK(labels.title == "geopipe, ΔN 2, nonblocking, 4 × 2048 tokens");
  CHECK(labels.lower_bound_ns == 7);
  CHECK(BeginsSite(labels, 2));
  CHECK_FALSE(BeginsSite(labels, 1));
  CHECK(DeviceNames(labels, 3) ==
        std::vector<std::string>{"stage 0 (north, node 0)", "stage 1 (north, node 1)", "stage 2 (east, node 0)"});
}

}  // namespace
}  // namespace geopipe
