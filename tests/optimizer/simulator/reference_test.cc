// The product's simulator against the reference on random schedules, to the nanosecond; and its agreement with the
// validator about what can run at all.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/validate.h"
#include "optimizer/simulator/lower_bound.h"
#include "optimizer/simulator/simulator.h"
#include "tests/optimizer/simulator/reference_simulator.h"
#include "tests/support/random_pipeline.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

std::vector<std::vector<std::pair<int64_t, int64_t>>> Times(const SimulationResult& result) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> times(result.timeline.size());
  for (size_t device = 0; device < times.size(); ++device) {
    for (const ActionTiming& timing : result.timeline[device]) {
      times[device].emplace_back(timing.start_ns, timing.end_ns);
    }
  }
  return times;
}

// Memory at the start and the end of every action, straight from the definition.
std::vector<int64_t> PeaksByTheBook(const Schedule& schedule, const MemoryCosts& memory) {
  std::vector<int64_t> peaks;
  for (size_t device = 0; device < schedule.devices.size(); ++device) {
    int64_t now = memory.static_bytes[device];
    peaks.push_back(now);
    for (const auto& [stage, kind, micro_batch] : schedule.devices[device]) {
      now += kind == ActionKind::kForward ? memory.activation_bytes[stage] : 0;
      peaks.back() = std::max(peaks.back(), now);
      now -= kind == ActionKind::kBackward || kind == ActionKind::kInputGradient ? memory.activation_bytes[stage] : 0;
      now += kind == ActionKind::kInputGradient ? memory.wgrad_bytes[stage] : 0;
      now -= kind == ActionKind::kWeightGradient ? memory.wgrad_bytes[stage] : 0;
      peaks.back() = std::max(peaks.back(), now);
    }
  }
  return peaks;
}

void CheckAgainstReference(const Schedule& schedule, const PipelineCosts& costs) {
  const SimulationResult result = Simulate(schedule, costs, {.record_timeline = true}).value();
  const ReferenceResult reference = SimulateByTheBook(schedule, costs);
  REQUIRE_FALSE(reference.deadlock);
  REQUIRE(Times(result) == reference.times);
  REQUIRE(result.iteration_ns == reference.end_ns + costs.epilogue_ns);
  REQUIRE(std::ssize(result.messages) == reference.message_count);
  int64_t arrival_sum_ns = 0;
  for (const MessageTiming& message : result.messages) {
    arrival_sum_ns += message.arrive_ns;
  }
  REQUIRE(arrival_sum_ns == reference.arrival_sum_ns);
  if (costs.memory.has_value()) {
    REQUIRE(result.peak_bytes == PeaksByTheBook(schedule, *costs.memory));
  }
  REQUIRE(LowerBoundNs(costs) <= result.iteration_ns);
  const SimulationResult lowered = Simulate(Lower(schedule).value(), costs, {.record_timeline = true}).value();
  REQUIRE(lowered.timeline == result.timeline);
  REQUIRE(lowered.messages == result.messages);
}

TEST_CASE("random valid schedules take the same nanoseconds as in the reference, and no less than the lower bound") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const PipelineShape shape = RandomShape(random);
    PipelineCosts costs = RandomCosts(random, shape);
    costs.epilogue_ns = Draw(random, 0, 5);
    REQUIRE(ValidateCosts(costs).ok());
    const Schedule schedule = RandomSchedule(random, shape, !costs.weight_grad_ns.empty());
    CAPTURE(round, CommModeName(costs.comm), ToCsv(schedule));
    REQUIRE(Validate(schedule).ok());
    REQUIRE(Validate(Lower(schedule).value()).ok());
    CheckAgainstReference(schedule, costs);
  }
}

TEST_CASE("in a long pipeline of few micro-batches, where most devices wait, the nanoseconds are the reference's too") {
  const uint64_t seed = TestSeed(76);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    const PipelineShape shape = PipelineShape::Linear(48, static_cast<int32_t>(Draw(random, 1, 3)));
    const PipelineCosts costs = RandomCosts(random, shape);
    const Schedule schedule = RandomSchedule(random, shape, !costs.weight_grad_ns.empty());
    CAPTURE(round, CommModeName(costs.comm));
    CheckAgainstReference(schedule, costs);
  }
}

TEST_CASE("permuted schedules are rejected or run to the end: validator and simulator agree, and nothing hangs") {
  const uint64_t seed = TestSeed(77);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int64_t valid = 0;
  int64_t deadlocked = 0;
  for (int round = 0; round < 4000; ++round) {
    const PipelineShape shape = RandomShape(random);
    const PipelineCosts costs = RandomCosts(random, shape);
    Schedule schedule = RandomSchedule(random, shape, !costs.weight_grad_ns.empty());
    for (int64_t swaps = Draw(random, 1, 6); swaps > 0; --swaps) {
      auto& actions = schedule.devices[Draw(random, 0, shape.devices - 1)];
      if (actions.size() > 1) {
        const int64_t at = Draw(random, 0, std::ssize(actions) - 2);
        const int64_t with = Draw(random, 0, 3) == 0 ? Draw(random, 0, std::ssize(actions) - 1) : at + 1;
        std::swap(actions[at], actions[with]);
      }
    }
    const absl::Status status = Validate(schedule);
    const bool says_deadlock = status.ToString().find("deadlock") != std::string::npos;
    const absl::StatusOr<SimulationResult> result = Simulate(schedule, costs);
    CAPTURE(round, ToCsv(schedule), status.ToString());
    if (status.ok()) {
      ++valid;
      CheckAgainstReference(schedule, costs);
    } else if (says_deadlock) {
      ++deadlocked;
      REQUIRE(result.status().code() == absl::StatusCode::kFailedPrecondition);
      REQUIRE(result.status().ToString().find("deadlock") != std::string::npos);
      REQUIRE(SimulateByTheBook(schedule, costs).deadlock);
    } else {
      // Out of order within one device: the simulator may run it or not, but it comes back.
      REQUIRE((result.ok() || result.status().code() == absl::StatusCode::kFailedPrecondition));
    }
  }
  CHECK(valid > 200);
  CHECK(deadlocked > 200);
}

TEST_CASE("fully shuffled lowered schedules never hang the validator or the simulator") {
  const uint64_t seed = TestSeed(78);
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const PipelineShape shape = RandomShape(random);
    const PipelineCosts costs = RandomCosts(random, shape);
    Schedule schedule = Lower(RandomSchedule(random, shape, !costs.weight_grad_ns.empty())).value();
    for (auto& actions : schedule.devices) {
      for (int64_t i = std::ssize(actions) - 1; i > 0; --i) {
        std::swap(actions[i], actions[Draw(random, 0, i)]);
      }
    }
    const absl::Status status = Validate(schedule);
    const absl::StatusOr<SimulationResult> result = Simulate(schedule, costs);
    if (status.ok()) {
      REQUIRE(result.ok());
    }
  }
}

}  // namespace
}  // namespace geopipe
