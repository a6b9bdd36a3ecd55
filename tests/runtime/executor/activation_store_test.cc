#include "runtime/executor/activation_store.h"

#include <catch2/catch.hpp>
#include <utility>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

TEST_CASE("a tensor waits for the action that takes it, B and I are one taker") {
  Allocator allocator(1 << 10);
  ActivationStore store(2);
  auto tensor = Tensor::Zeros(allocator, MemoryCategory::kActivations, DType::kFp32, {3});
  REQUIRE(tensor.ok());
  store.Put({1, ActionKind::kInputGradient, 4}, {.value = *std::move(tensor), .ready = Completion::At(77)});
  CHECK(store.size() == 1);
  const Timed<Tensor> input = store.Take({1, ActionKind::kBackward, 4});
  CHECK(input.value.elements() == 3);
  CHECK(input.ready_ns() == 77);
  CHECK(store.size() == 0);
}

TEST_CASE("with one stage per device at most one tensor waits between two actions") {
  for (const int32_t delta_n : {0, 3}) {
    const auto schedule =
        Lower(*MakeSchedule(ScheduleKind::kGeoPipe, PipelineShape::Linear(4, 8), std::vector<int32_t>(3, delta_n)));
    REQUIRE(schedule.ok());
    for (int32_t device = 0; device < 4; ++device) {
      CHECK(MaxWaiting(*schedule, device) == 1);
    }
  }
}

TEST_CASE("stages of one device pass tensors through the store") {
  const PipelineShape shape{.devices = 1, .stages = 2, .micro_batches = 2, .placement = {0, 0}};
  const auto schedule = ParseCsv("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1", shape);
  REQUIRE(schedule.ok());
  CHECK(MaxWaiting(*schedule, 0) == 2);
}

}  // namespace
}  // namespace geopipe
