// Small pipelines worked out by hand.
#include "optimizer/simulator/simulator.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/schedule_table.h"
#include "optimizer/simulator/lower_bound.h"

namespace geopipe {
namespace {

// Two devices, F = 10, B = 20, latency 5, serialization 3 on the only boundary.
PipelineCosts TwoStages(int32_t micro_batches, CommMode comm) {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, micro_batches);
  costs.forward_ns = {10, 10};
  costs.input_grad_ns = {20, 20};
  costs.boundaries = {BoundaryCost{true, {}, 0, 5, 3}};
  costs.comm = comm;
  return costs;
}

SimulationResult Run(std::string_view csv, const PipelineCosts& costs) {
  return Simulate(ParseCsv(csv, costs.shape).value(), costs, {.record_timeline = true}).value();
}

TEST_CASE("non-blocking: sends hold nobody, messages queue on the link") {
  PipelineCosts costs = TwoStages(2, CommMode::kNonBlocking);
  costs.boundaries[0].serialization_ns = 12;
  const SimulationResult result = Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs);
  const std::vector<MessageTiming> expected = {
      {{0, ActionKind::kSendForward, 0}, 10, 10, 27},
      {{0, ActionKind::kSendForward, 1}, 20, 22, 39},  // the link is busy until 22
      {{1, ActionKind::kSendBackward, 0}, 57, 57, 74},
      {{1, ActionKind::kSendBackward, 1}, 87, 87, 104},
  };
  CHECK(result.messages == expected);
  CHECK(result.timeline[0] == std::vector<ActionTiming>{{{0, ActionKind::kForward, 0}, 0, 10},
                                                        {{0, ActionKind::kForward, 1}, 10, 20},
                                                        {{0, ActionKind::kBackward, 0}, 74, 94},
                                                        {{0, ActionKind::kBackward, 1}, 104, 124}});
  CHECK(result.iteration_ns == 124);
  CHECK(result.busy_ns == std::vector<int64_t>{60, 60});
  CHECK(result.bubble_ratio == Approx(1 - 120.0 / 248));
}

TEST_CASE("blocking: the sender starts nothing until its message has arrived, and is not busy") {
  const SimulationResult result = Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", TwoStages(2, CommMode::kBlocking));
  CHECK(result.timeline[0][1].start_ns == 18);
  CHECK(result.timeline[1][2].start_ns == 56);  // 1B0 ends at 48, its message is there at 56
  CHECK(result.busy_ns == std::vector<int64_t>{60, 60});
  CHECK(result.iteration_ns == 114);
}

TEST_CASE("a message's overhead comes after its link, and is all there is where there is no link") {
  PipelineCosts costs = TwoStages(2, CommMode::kNonBlocking);
  costs.boundaries[0].overhead_ns = 2;
  const std::string csv = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  CHECK(Run(csv, costs).messages[0].arrive_ns == 20);
  CHECK(Run(csv, costs).messages[1].enter_ns == 20);  // it does not occupy the link
  costs.boundaries[0] = BoundaryCost();
  costs.boundaries[0].overhead_ns = 2;
  const SimulationResult result = Run(csv, costs);
  CHECK(result.messages[0].arrive_ns == 12);
  CHECK(result.timeline[0][1].start_ns == 10);
  costs.comm = CommMode::kBlocking;
  costs.boundaries[0].acknowledgement_ns = 1;
  CHECK(Run(csv, costs).timeline[0][1].start_ns == 13);
  CHECK(LowerBoundNs(costs) <= Run(csv, costs).iteration_ns);
}

TEST_CASE("blocking on a real link: the sender is let go when the acknowledgement is back") {
  PipelineCosts costs = TwoStages(2, CommMode::kBlocking);
  costs.boundaries[0].acknowledgement_ns = 5;
  const SimulationResult result = Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs);
  CHECK(result.timeline[0][1].start_ns == 23);
  CHECK(result.messages[0].arrive_ns == 18);  // the message itself is no later
  CHECK(result.timeline[1][2].start_ns == 61);
  costs.comm = CommMode::kNonBlocking;
  CHECK(Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs).timeline[0][1].start_ns == 10);
}

TEST_CASE("rendezvous: a transfer waits for the receiver, the sender does not") {
  const SimulationResult result = Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", TwoStages(2, CommMode::kRendezvous));
  CHECK(result.timeline[0][1].start_ns == 10);
  // 0F1 is ready at 20, but device 1 asks for it only after 1B0.
  CHECK(result.messages[1] == MessageTiming{{0, ActionKind::kSendForward, 1}, 20, 48, 56});
  CHECK(result.timeline[1][2].start_ns == 56);
}

TEST_CASE("two devices that end at one instant enter a shared link in order of device") {
  // Boundaries 0 and 2 share a link, and go the same way. Stage 0 ends its fourth forward at 40, when stage 2 ends its
  // first: 10, then 5 + 5 on the link, then 10 and 10.
  PipelineCosts costs;
  costs.forward_ns = costs.input_grad_ns = {10, 10, 10, 10};
  const BoundaryCost shared{true, std::string(1, 'w'), 0, 5, 5};
  costs.boundaries = {shared, BoundaryCost{}, shared};
  const Action of_stage_0{0, ActionKind::kSendForward, 3};
  const Action of_stage_2{2, ActionKind::kSendForward, 0};
  const auto messages_at_40 = [&costs](const std::vector<int32_t>& placement) {
    costs.shape = {4, 4, 4, placement};
    Schedule schedule{costs.shape, std::vector<std::vector<Action>>(4)};
    for (const Schedule by_stage = MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(4, 4)).value();
         const std::vector<Action>& actions : by_stage.devices) {
      schedule.devices[placement[actions[0].stage]] = actions;
    }
    const SimulationResult result = Simulate(schedule, costs, {.record_timeline = true}).value();
    std::vector<MessageTiming> messages;
    for (const MessageTiming& message : result.messages) {
      if (message.ready_ns == 40) {
        messages.push_back(message);
      }
    }
    return messages;
  };
  CHECK(messages_at_40({0, 1, 2, 3}) == std::vector<MessageTiming>{{of_stage_0, 40, 40, 50}, {of_stage_2, 40, 45, 55}});
  CHECK(messages_at_40({2, 3, 0, 1}) == std::vector<MessageTiming>{{of_stage_2, 40, 40, 50}, {of_stage_0, 40, 45, 55}});
}

TEST_CASE("split backward: the input gradient goes on while the weight gradient fills the gap") {
  PipelineCosts costs = TwoStages(1, CommMode::kNonBlocking);
  costs.weight_grad_ns = {7, 7};
  CHECK(Run("0F0,0I0,0W0\n1F0,1I0,1W0\n", costs).iteration_ns == 10 + 8 + 10 + 20 + 8 + 20 + 7);
  CHECK(Run("0F0,0B0\n1F0,1B0\n", costs).iteration_ns == 10 + 8 + 10 + 27 + 8 + 27);
  CHECK(LowerBoundNs(costs) == 10 + 8 + 10 + 20 + 8 + 20 + 7);
}

TEST_CASE("memory: activations until B or I, what W needs until W") {
  PipelineCosts costs = TwoStages(2, CommMode::kNonBlocking);
  costs.weight_grad_ns = {1, 1};
  costs.memory = MemoryCosts{{130, 127}, {100, 100}, {10, 10}, {4, 4}};
  const SimulationResult split = Run("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n", costs);
  CHECK(split.peak_bytes == std::vector<int64_t>{120, 114});
  CHECK(split.fits);
  const SimulationResult full = Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs);
  CHECK(full.peak_bytes == std::vector<int64_t>{120, 110});
  costs.memory->capacity_bytes = {119, 120};
  CHECK_FALSE(Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs).fits);
  costs.memory.reset();
  CHECK(Run("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs).peak_bytes.empty());
}

TEST_CASE("the epilogue counts as bubble, in iteration and lower bound") {
  PipelineCosts costs = TwoStages(1, CommMode::kNonBlocking);
  const int64_t bound_ns = LowerBoundNs(costs);
  costs.epilogue_ns = 24;
  const SimulationResult result = Run("0F0,0B0\n1F0,1B0\n", costs);
  CHECK(result.iteration_ns == 76 + 24);
  CHECK(result.bubble_ratio == Approx(1 - 60.0 / 200));
  CHECK(LowerBoundNs(costs) == bound_ns + 24);
}

TEST_CASE("no durations at all: no time, no bubble, no hang") {
  PipelineCosts costs = TwoStages(3, CommMode::kBlocking);
  costs.forward_ns = costs.input_grad_ns = {0, 0};
  costs.boundaries[0] = {true, {}, 0, 0, 0};
  const SimulationResult result = Simulate(MakeSchedule(ScheduleKind::kOneFOneB, costs.shape).value(), costs).value();
  CHECK(result.iteration_ns == 0);
  CHECK(result.bubble_ratio == 0);
}

TEST_CASE("a deadlock shows its cycle, what never comes is named, a split needs its costs") {
  const PipelineCosts costs = TwoStages(2, CommMode::kNonBlocking);
  const auto simulate = [&costs](std::string_view csv) {
    return Simulate(ParseCsv(csv, costs.shape).value(), costs).status().ToString();
  };
  CHECK(simulate("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n") ==
        "FAILED_PRECONDITION: deadlock: these actions wait for each other in a cycle: 0B0 (device 0 position 1) waits "
        "for 1B0 (device 1 position 2), which stands behind 1F1; 1F1 (device 1 position 1) waits for 0F1 (device 0 "
        "position 2), which stands behind 0B0; move one that is waited for ahead of what it stands behind");
  CHECK(simulate("0F0\n1F0,1F1\n") ==
        "FAILED_PRECONDITION: deadlock: 1F1 (device 1 position 1) waits for 0F1, which device 0 never runs");
  CHECK(simulate("0F0,0I0\n1F0,1B0\n") ==
        "INVALID_ARGUMENT: action 0I0 splits the backward, but the costs give no weight gradient time (weight_grad_s)");
  CHECK(simulate("0F0,0B2\n1F0,1B0\n") ==
        "INVALID_ARGUMENT: action 0B2 on device 0 does not belong there: 2 stages, 2 micro-batches");
}

}  // namespace
}  // namespace geopipe
