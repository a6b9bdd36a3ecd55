#include "optimizer/model/plan/plan_params.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("ranks are numbered with tensor fastest, then data, then pipeline") {
  const ProcessGrid grid{.pipeline = 2, .data = 3, .tensor = 4};
  CHECK(grid.size() == 24);
  CHECK(grid.At(0) == Rank{});
  CHECK(grid.At(1) == Rank{.pipeline = 0, .data = 0, .tensor = 1});
  CHECK(grid.At(4) == Rank{.pipeline = 0, .data = 1, .tensor = 0});
  CHECK(grid.At(12) == Rank{.pipeline = 1, .data = 0, .tensor = 0});
  for (int32_t index = 0; index < grid.size(); ++index) {
    CHECK(grid.IndexOf(grid.At(index)) == index);
  }
}

TEST_CASE("a rank shares actions with the tensor ranks of its replica, and reduces gradients with its replicas") {
  const ProcessGrid grid{.pipeline = 2, .data = 3, .tensor = 2};
  const int32_t rank = grid.IndexOf({.pipeline = 1, .data = 2, .tensor = 1});
  CHECK(grid.TensorGroupOf(rank) == std::vector<int32_t>{10, 11});
  CHECK(grid.ReplicasOf(rank) == std::vector<int32_t>{7, 9, 11});
  CHECK(grid.PipelineOf(rank) == std::vector<int32_t>{5, 11});
  CHECK(ProcessGrid{}.TensorGroupOf(0) == std::vector<int32_t>{0});
  CHECK(ProcessGrid{}.ReplicasOf(0) == std::vector<int32_t>{0});
}

TEST_CASE("an appended pipeline rank has a device for each data and tensor coordinate") {
  Plan plan;
  plan.grid = {.data = 2, .tensor = 2};
  plan.Append({.site = "north"}, {}, 0, 4);
  plan.Append({.site = "east"}, {}, 1, 0);
  plan.stages.push_back({.pipeline_rank = 0, .layers = {}});
  plan.micro_batches = 8;
  CHECK(plan.grid == ProcessGrid{.pipeline = 2, .data = 2, .tensor = 2});
  CHECK(plan.devices.size() == 8);
  CHECK(plan.devices[plan.grid.IndexOf({.pipeline = 0, .data = 1, .tensor = 1})] ==
        DevicePlace{.node = 0, .device = 7});
  CHECK(plan.DevicesOf(1).size() == 4);
  CHECK(plan.DevicesOf(1).front() == DevicePlace{.node = 1, .device = 0});
  CHECK(plan.SiteOf(2) == "north");
  CHECK(plan.Crossings() == std::vector<int32_t>{0, 1});
  CHECK(plan.Shape() == PipelineShape{.devices = 2, .stages = 3, .micro_batches = 8, .placement = {0, 1, 0}});
}

TEST_CASE("boundary ΔN stands at the crossings only") {
  Plan plan;
  for (const char* site : {"north", "north", "east", "west", "west"}) {
    plan.Append({.site = site}, {});
  }
  plan.delta_n = {3, 1};
  CHECK(BoundaryDeltaN(plan) == std::vector<int32_t>{0, 3, 1, 0});
}

}  // namespace
}  // namespace geopipe
