#include "optimizer/simulator/comparison.h"

#include <catch2/catch.hpp>
#include <vector>

#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

PipelineCosts Costs(int32_t stages, int32_t micro_batches) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(stages, micro_batches);
  costs.forward_ns.assign(stages, 10 * kMs);
  costs.input_grad_ns.assign(stages, 20 * kMs);
  for (int32_t i = 0; i + 1 < stages; ++i) {
    costs.boundaries.push_back({.crosses = i == 1,
                                .link = i == 1 ? "wan" : "",
                                .message_bytes = 1000,
                                .latency_ns = i == 1 ? 30 * kMs : 0,
                                .serialization_ns = i == 1 ? 2 * kMs : 0});
  }
  costs.epilogue_ns = 3 * kMs;
  return costs;
}

// Reports that workers would send if the world were as `truth` says.
std::vector<MeasuredIteration> Measure(const Schedule& schedule, const PipelineCosts& truth, int iterations,
                                       int64_t late_ns = 0) {
  const SimulationResult result = Simulate(schedule, truth, {.record_timeline = true}).value();
  std::vector<std::vector<ActionTiming>> actions = result.timeline;
  for (const MessageTiming& message : result.messages) {
    const bool upwards = message.send.kind == ActionKind::kSendForward;
    const int32_t to = message.send.stage + (upwards ? 1 : -1);
    const ActionKind receive = upwards ? ActionKind::kRecvForward : ActionKind::kRecvBackward;
    actions[message.send.stage].push_back({message.send, message.ready_ns, message.ready_ns});
    actions[to].push_back({{to, receive, message.send.micro_batch}, message.arrive_ns, message.arrive_ns + 5});
  }
  for (std::vector<ActionTiming>& device : actions) {  // whose every other compute action was begun late
    for (size_t i = 1; i < device.size(); i += 2) {
      device[i].start_ns += IsCompute(device[i].action.kind) ? late_ns : 0;
    }
  }
  std::vector<MeasuredIteration> measured;
  for (int i = 0; i < iterations; ++i) {
    measured.push_back(MakeMeasuredIteration(i, result.iteration_ns, actions, truth.shape));
  }
  return measured;
}

struct World {
  PipelineCosts costs = Costs(4, 16);
  Schedule schedule =
      Lower(MakeSchedule(ScheduleKind::kGeoPipe, costs.shape, std::vector<int32_t>{0, 2, 0}).value()).value();

  PlanComparison Compare(const PipelineCosts& truth) const {
    const std::vector<MeasuredIteration> measured = Measure(schedule, truth, 3);
    return ComparePlan(schedule, costs, measured).value();
  }
};

TEST_CASE("a run as predicted deviates nowhere") {
  const World world;
  const PlanComparison comparison = world.Compare(world.costs);
  CHECK(comparison.predicted_iteration_ns == comparison.measured_iteration_ns);
  CHECK(comparison.deviations.empty());
  CHECK(comparison.start_error_p95_ns == 0);
  REQUIRE(comparison.stages.size() == 4);
  CHECK(comparison.stages[2].measured_forward_ns == 10 * kMs);
  CHECK(comparison.stages[2].measured_backward_ns == 20 * kMs);
  REQUIRE(comparison.links.size() == 2);
  CHECK(comparison.links[0].boundary == 1);
  CHECK(comparison.links[0].measured_ns == 32 * kMs);
  CHECK(comparison.links[0].predicted_ns == 32 * kMs);
}

TEST_CASE("the stage that is slower is named, whichever it is, with what it costs") {
  const World world;
  for (int32_t stage = 0; stage < 4; ++stage) {
    PipelineCosts truth = world.costs;
    truth.forward_ns[stage] = 13 * kMs;
    truth.input_grad_ns[stage] = 26 * kMs;
    const PlanComparison comparison = world.Compare(truth);
    CAPTURE(stage);
    REQUIRE(!comparison.deviations.empty());
    const Deviation& largest = comparison.deviations.front();
    CHECK(largest.kind == Deviation::Kind::kStage);
    CHECK(largest.index == stage);
    CHECK(largest.predicted_ns == 30 * kMs);
    CHECK(largest.measured_ns == 39 * kMs);
    // The effect of this one alone is all there is.
    CHECK(comparison.predicted_iteration_ns + largest.effect_ns == comparison.measured_iteration_ns);
  }
}

TEST_CASE("a slower link is named, in latency or in bandwidth") {
  const World world;
  for (const bool latency : {true, false}) {
    PipelineCosts truth = world.costs;
    if (latency) {
      truth.boundaries[1].latency_ns *= 3;
    } else {
      truth.boundaries[1].serialization_ns *= 20;
    }
    const PlanComparison comparison = world.Compare(truth);
    CAPTURE(latency);
    REQUIRE(!comparison.deviations.empty());
    CHECK(comparison.deviations.front().kind == Deviation::Kind::kLink);
    CHECK(comparison.deviations.front().index == 1);
    CHECK(comparison.deviations.front().effect_ns > 0);
  }
}

TEST_CASE("a longer time between iterations is named") {
  const World world;
  PipelineCosts truth = world.costs;
  truth.epilogue_ns += 100 * kMs;
  const PlanComparison comparison = world.Compare(truth);
  REQUIRE(comparison.deviations.size() == 1);
  CHECK(comparison.deviations.front().kind == Deviation::Kind::kUpdate);
  CHECK(comparison.deviations.front().predicted_ns == 3 * kMs);
  CHECK(comparison.deviations.front().measured_ns == 103 * kMs);
}

TEST_CASE("how far from their predicted times all but the worst twentieth of the actions begin") {
  const World world;
  std::vector<MeasuredIteration> measured = Measure(world.schedule, world.costs, 1);
  int64_t late_ns = 0;
  for (auto& device : measured[0].timeline) {  // 4 x 32 actions: 1 to 128 ns late
    for (ActionTiming& timing : device) {
      timing.start_ns += ++late_ns;
    }
  }
  CHECK(ComparePlan(world.schedule, world.costs, measured)->start_error_p95_ns == 121);
  // One iteration that somebody else disturbed does not count, as with the iteration's time.
  const std::vector<MeasuredIteration> disturbed = {measured[0], Measure(world.schedule, world.costs, 1)[0],
                                                    Measure(world.schedule, world.costs, 1)[0]};
  CHECK(ComparePlan(world.schedule, world.costs, disturbed)->start_error_p95_ns == 0);
  // Warm-up does not count either, when there is anything else.
  std::vector<MeasuredIteration> warming = Measure(world.schedule, world.costs, 4);
  for (size_t i = 0; i < 3; ++i) {
    warming[i].timeline = measured[0].timeline;
  }
  CHECK(ComparePlan(world.schedule, world.costs, warming)->start_error_p95_ns == 0);
  warming.pop_back();
  CHECK(ComparePlan(world.schedule, world.costs, warming)->start_error_p95_ns == 121);
}

TEST_CASE("warm-up is three iterations or a tenth of them, but never all") {
  CHECK(WarmUpIterations(1) == 0);
  CHECK(WarmUpIterations(3) == 2);
  CHECK(WarmUpIterations(4) == 3);
  CHECK(WarmUpIterations(30) == 3);
  CHECK(WarmUpIterations(31) == 4);
  CHECK(WarmUpIterations(1000) == 100);
}

TEST_CASE("a stage that its sends hold, or that begins late, is named") {
  const World world;
  for (const bool sends : {true, false}) {
    std::vector<MeasuredIteration> measured = Measure(world.schedule, world.costs, 3);
    for (MeasuredIteration& iteration : measured) {
      for (ActionDelay& delay : iteration.delays) {
        CHECK(delay.sends_ns == 0);
        CHECK(delay.late_ns == 0);
        if (delay.action.stage == 2) {
          (sends ? delay.sends_ns : delay.late_ns) = 2 * kMs;
        }
      }
    }
    const PlanComparison comparison = ComparePlan(world.schedule, world.costs, measured).value();
    REQUIRE(comparison.deviations.size() == 1);
    const Deviation& deviation = comparison.deviations.front();
    CHECK(deviation.kind == (sends ? Deviation::Kind::kSender : Deviation::Kind::kReceiver));
    CHECK(deviation.index == 2);
    CHECK(deviation.measured_ns == 2 * kMs);
    CHECK(deviation.effect_ns >= 16 * 2 * kMs);  // some of it hides
  }
}

TEST_CASE("a device that begins late, though it is free and the input is there, is a deviation") {
  const World world;
  constexpr int64_t kLateNs = 3 * kMs;
  const std::vector<MeasuredIteration> late = Measure(world.schedule, world.costs, 3, kLateNs);
  CHECK_FALSE(ComparePlan(world.schedule, world.costs, late)->deviations.empty());
  CHECK(late[0].delays[0].late_ns == kLateNs);
}

TEST_CASE("what is not notable is not named, and what was not measured is refused") {
  const World world;
  PipelineCosts truth = world.costs;
  truth.forward_ns[1] += kMs / 100;
  CHECK(world.Compare(truth).deviations.empty());
  CHECK(ComparePlan(world.schedule, world.costs, {}).status().code() == absl::StatusCode::kInvalidArgument);
  std::vector<MeasuredIteration> partial = Measure(world.schedule, truth, 1);
  partial[0].timeline[3].clear();
  CHECK(ComparePlan(world.schedule, world.costs, partial).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("messages are put together of both ends, and one end alone is none") {
  const PipelineShape shape = PipelineShape::Linear(2, 2);
  const MeasuredIteration measured = MakeMeasuredIteration(4, 100,
                                                           {{{{0, ActionKind::kForward, 0}, 0, 10},
                                                             {{0, ActionKind::kSendForward, 0}, 10, 11},
                                                             {{0, ActionKind::kSendForward, 1}, 12, 12},
                                                             {{0, ActionKind::kRecvBackward, 0}, 70, 75}},
                                                            {{{1, ActionKind::kRecvForward, 0}, 30, 31},
                                                             {{1, ActionKind::kForward, 0}, 31, 41},
                                                             {{1, ActionKind::kSendBackward, 0}, 61, 62}}},
                                                           shape);
  CHECK(measured.timeline[0].size() == 1);
  CHECK(measured.timeline[1].size() == 1);
  CHECK(measured.messages == std::vector<MessageTiming>{{{0, ActionKind::kSendForward, 0}, 10, 10, 30},
                                                        {{1, ActionKind::kSendBackward, 0}, 61, 61, 70}});
  CHECK(measured.delays.empty());
}

TEST_CASE("why an action did not begin at once: sends, its input, or nothing that is known") {
  const PipelineShape shape = PipelineShape::Linear(2, 2);
  const MeasuredIteration measured = MakeMeasuredIteration(0, 200,
                                                           {{{{0, ActionKind::kForward, 0}, 0, 10},
                                                             {{0, ActionKind::kSendForward, 0}, 10, 14},
                                                             {{0, ActionKind::kForward, 1}, 15, 25},
                                                             {{0, ActionKind::kSendForward, 1}, 25, 27},
                                                             {{0, ActionKind::kRecvBackward, 0}, 70, 90},
                                                             {{0, ActionKind::kBackward, 0}, 90, 110}},
                                                            {}},
                                                           shape);
  CHECK(measured.delays ==
        std::vector<ActionDelay>{{{0, ActionKind::kForward, 1}, 4, 1}, {{0, ActionKind::kBackward, 0}, 2, 20}});
}

}  // namespace
}  // namespace geopipe
