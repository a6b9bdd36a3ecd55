#include "optimizer/model/pipeline_costs.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>

namespace geopipe {
namespace {

PipelineCosts ThreeStages() {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(3, 4);
  costs.forward_ns = {1, 2, 3};
  costs.input_grad_ns = {2, 4, 6};
  costs.boundaries.resize(2);
  for (BoundaryCost& boundary : costs.boundaries) {
    boundary = {true, std::string(1, 'w'), 1000, 50, 100};
  }
  costs.memory = MemoryCosts{{90, 90, 90}, {10, 10, 10}, {1, 1, 1}, {0, 0, 0}};
  return costs;
}

TEST_CASE("seconds become whole nanoseconds, half-up") {
  CHECK(SecondsToNs(0) == 0);
  CHECK(SecondsToNs(0.03) == 30'000'000);
  CHECK(SecondsToNs(1e-9) == 1);
  CHECK(SecondsToNs(0.5e-9) == 1);
  CHECK(SecondsToNs(0.49e-9) == 0);
  CHECK(SecondsToNs(1.4999e-9) == 1);
  CHECK(SecondsToNs(1.5e-9) == 2);
  CHECK(SecondsToNs(2.5e-9) == 3);
  // The largest fraction below a half, which adding a half would round up to one.
  CHECK(SecondsToNs(0.49999999999999994e-9) == 0);
  CHECK(SecondsToNs(4096) == 4'096'000'000'000);
  CHECK(SecondsToNs(8'999'999.0) == 8'999'999'000'000'000);
}

TEST_CASE("good costs are valid, with and without memory, split or not") {
  PipelineCosts costs = ThreeStages();
  CHECK(ValidateCosts(costs).ok());
  CHECK(costs.BackwardNs(1) == 4);
  costs.weight_grad_ns = {1, 0, 2};
  CHECK(ValidateCosts(costs).ok());
  CHECK(costs.BackwardNs(2) == 8);
  costs.memory.reset();
  CHECK(ValidateCosts(costs).ok());
}

TEST_CASE("schedule generators learn of durations, crossings, and memory if there is any") {
  PipelineCosts costs = ThreeStages();
  costs.weight_grad_ns = {1, 0, 2};
  costs.boundaries[1].overhead_ns = 7;
  costs.memory->wgrad_bytes = {1, 0, 1};
  const ScheduleCosts known = ScheduleCostsOf(costs);
  CHECK(known.forward_ns == costs.forward_ns);
  CHECK(known.input_grad_ns == costs.input_grad_ns);
  CHECK(known.weight_grad_ns == costs.weight_grad_ns);
  CHECK(known.latency_ns == std::vector<int64_t>{50, 57});
  CHECK(known.serialization_ns == std::vector<int64_t>{100, 100});
  CHECK(known.activation_bytes == costs.memory->activation_bytes);
  CHECK(known.wgrad_bytes == costs.memory->wgrad_bytes);
  CHECK(known.activation_cap.empty());
  costs.memory->activation_bytes = {0, 0, 0};
  CHECK(ScheduleCostsOf(costs).wgrad_bytes.empty());
  costs.memory.reset();
  CHECK(ScheduleCostsOf(costs).activation_bytes.empty());
}

TEST_CASE("every bad field is named") {
  const std::vector<std::pair<std::function<void(PipelineCosts&)>, std::string>> table = {
      {[](PipelineCosts& c) { c.shape.micro_batches = 0; }, "micro_batches is 0: it must be at least 1"},
      {[](PipelineCosts& c) { c.forward_ns.pop_back(); }, "forward_ns has 2 entries: it needs 3, one per stage"},
      {[](PipelineCosts& c) { c.input_grad_ns[1] = -4; }, "input_grad_ns[1] is -4: it must not be negative"},
      {[](PipelineCosts& c) { c.weight_grad_ns = {1}; }, "weight_grad_ns has 1 entries: it needs 3, one per stage"},
      {[](PipelineCosts& c) { c.epilogue_ns = -1; }, "epilogue_ns is -1: it must not be negative"},
      {[](PipelineCosts& c) { c.boundaries.pop_back(); },
       "boundaries has 1 entries: it needs 2, one between two stages"},
      {[](PipelineCosts& c) { c.boundaries[1].latency_ns = -1; },
       "boundaries[1] has message_bytes 1000, latency_ns -1, serialization_ns 100, acknowledgement_ns 0, overhead_ns "
       "0: none may be "
       "negative"},
      {[](PipelineCosts& c) { c.boundaries[0].crosses = false; },
       "boundaries[0] has no link but link 'w', latency_ns 50, serialization_ns 100: a boundary without a link costs "
       "nothing"},
      {[](PipelineCosts& c) { c.boundaries[1].latency_ns = 51; },
       "boundaries[0] and boundaries[1] share link 'w' but differ: latency_ns 50 and 51, serialization_ns 100 and 100 "
       "for 1000 and 1000 bytes; a shared link has one latency and one bandwidth"},
      {[](PipelineCosts& c) { c.boundaries[1].serialization_ns = 101; },
       "boundaries[0] and boundaries[1] share link 'w' but differ: latency_ns 50 and 50, serialization_ns 100 and 101 "
       "for 1000 and 1000 bytes; a shared link has one latency and one bandwidth"},
      {[](PipelineCosts& c) { c.memory->capacity_bytes = {1}; },
       "memory.capacity_bytes has 1 entries: it needs 3, one per device"},
      {[](PipelineCosts& c) { c.memory->wgrad_bytes[2] = -1; }, "memory.wgrad_bytes[2] is -1: it must not be negative"},
      {[](PipelineCosts& c) { c.memory->activation_bytes[2] = int64_t{1} << 62; },
       "memory adds up to 1.84e+19 bytes over all micro-batches: it must stay below 4e+18"},
      {[](PipelineCosts& c) { c.forward_ns[0] = int64_t{1} << 62; },
       "all durations of an iteration add up to 1.84e+10 s: they must stay below 4e+09 s to be counted in "
       "nanoseconds"},
  };
  for (const auto& [spoil, message] : table) {
    PipelineCosts costs = ThreeStages();
    spoil(costs);
    CHECK(ValidateCosts(costs).message() == message);
  }
}

TEST_CASE("messages of two sizes may share a link of one bandwidth") {
  PipelineCosts costs = ThreeStages();
  costs.boundaries[1].message_bytes = 2'500;
  costs.boundaries[1].serialization_ns = 250;
  CHECK(ValidateCosts(costs).ok());
  // 333 bytes take 33.3 ns: rounded.
  costs.boundaries[1].message_bytes = 333;
  costs.boundaries[1].serialization_ns = 33;
  CHECK(ValidateCosts(costs).ok());
  costs.boundaries[1].serialization_ns = 36;
  CHECK_FALSE(ValidateCosts(costs).ok());
}

}  // namespace
}  // namespace geopipe
