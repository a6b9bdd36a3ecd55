#include "coordinator/cli/trace_data.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "optimizer/schedule/lowering.h"
#include "optimizer/schedule/schedule_table.h"
#include "proto/wire/schedule_wire.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

// Two stages in two sites, one of them slower than its plan says.
v1::GetTraceResponse SlowSecondStage() {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 4);
  costs.forward_ns = {10 * kMs, 10 * kMs};
  costs.input_grad_ns = {20 * kMs, 20 * kMs};
  costs.boundaries = {{.crosses = true, .link = "wan", .message_bytes = 10, .latency_ns = 5 * kMs}};
  Plan plan;
  plan.micro_batch_size = 1;
  plan.sequence_length = 8;
  plan.micro_batches = 4;
  plan.delta_n = {1};
  plan.Append({.site = "ea\"st"}, {.first = 0, .last = 0}, 0, 0);
  plan.Append({.site = "west"}, {.first = 1, .last = 1}, 0, 3);
  const Schedule schedule =
      Lower(MakeSchedule(ScheduleKind::kGeoPipe, costs.shape, std::vector<int32_t>{1}).value()).value();
  v1::GetTraceResponse response;
  *response.mutable_job()->mutable_plan() = ToProto(plan);
  *response.mutable_job()->mutable_schedule() = ToProto(schedule);
  *response.mutable_job()->mutable_costs() = ToProto(costs);
  costs.forward_ns[1] = 15 * kMs;
  const SimulationResult truth = Simulate(schedule, costs, {.record_timeline = true}).value();
  v1::IterationTimeline& timeline = *response.add_iterations();
  timeline.set_iteration(3);
  timeline.set_duration_ns(truth.iteration_ns);
  for (int32_t stage = 0; stage < 2; ++stage) {
    v1::RankTimeline& line = *timeline.add_ranks();
    line.set_rank(stage);
    line.set_clock_error_ns(100 * stage);
    const auto add = [&line](const Action& action, int64_t start_ns, int64_t end_ns) {
      v1::ActionTiming& timing = *line.add_actions();
      timing.set_action(ToString(action));
      timing.set_start_ns(start_ns);
      timing.set_end_ns(end_ns);
    };
    for (const auto& [action, start_ns, end_ns] : truth.timeline[stage]) {
      add(action, start_ns, end_ns);
    }
    for (const MessageTiming& message : truth.messages) {
      const bool upwards = message.send.kind == ActionKind::kSendForward;
      if (message.send.stage == stage) {
        add(message.send, message.ready_ns, message.ready_ns);
      } else {
        add({stage, upwards ? ActionKind::kRecvForward : ActionKind::kRecvBackward, message.send.micro_batch},
            message.arrive_ns, message.arrive_ns);
      }
    }
  }
  return response;
}

TEST_CASE("a timeline with an action of no stage is refused") {
  v1::GetTraceResponse response = SlowSecondStage();
  response.mutable_iterations(0)->mutable_ranks(1)->mutable_actions(0)->set_action("2F0");
  CHECK(TraceDataOf(response).status().message() == "stage of an action is 2; it must be from 0 to 1");
}

TEST_CASE("a trace shows the measured iteration above the predicted one, with arrows that meet") {
  const TraceData data = TraceDataOf(SlowSecondStage()).value();
  CHECK(data.clock_error_ns == 100);
  const auto trace = nlohmann::json::parse(TraceJson(data).value());
  std::set<std::string> processes;
  std::set<std::string> threads;
  std::map<std::string, int> phases;
  std::set<int64_t> starts;
  std::set<int64_t> finishes;
  for (const auto& event : trace.at("traceEvents")) {
    ++phases[event.at("ph").get<std::string>()];
    if (event["name"] == "process_name") {
      processes.insert(event["args"]["name"].get<std::string>());
    } else if (event["name"] == "thread_name") {
      threads.insert(event["args"]["name"].get<std::string>());
    } else if (event["ph"] == "s") {
      starts.insert(event["id"].get<int64_t>());
    } else if (event["ph"] == "f") {
      finishes.insert(event["id"].get<int64_t>());
    }
  }
  CHECK(processes == std::set<std::string>{"measured, iteration 3: devices", "measured, iteration 3: links",
                                           "predicted: devices", "predicted: links"});
  CHECK(threads == std::set<std::string>{"pipeline rank 0 (ea\"st/0/0)", "pipeline rank 1 (west/0/3)"});
  CHECK(phases["X"] == 2 * 2 * 8);
  CHECK(phases["b"] == 2 * 8);
  CHECK(starts.size() == 16);
  CHECK(starts == finishes);
}

TEST_CASE("the sentence names the stage, by how much and what it costs") {
  const TraceData data = TraceDataOf(SlowSecondStage()).value();
  const PlanComparison comparison = ComparePlan(data.schedule, data.costs, data.iterations).value();
  const std::string sentence = LargestDeviation(comparison, data.plan);
  INFO(sentence);
  CHECK(sentence.find("stage 1 (west/0/3) is slower than predicted: forward and backward of a micro-batch take 35.0 ms "
                      "instead of 30.0 ms; this alone makes the iteration") == 0);
  const std::string text = ComparisonText(comparison, data.plan);
  INFO(text);
  CHECK(text.find("+50.0 %") != std::string::npos);
  CHECK(text.find("west to ea\"st (boundary 0, gradients)") != std::string::npos);
  const Json json = ComparisonJson(comparison, data.plan);
  CHECK(json["stages"][1]["forward_s"]["measured"] == 0.015);
  CHECK(json["deviations"][0]["kind"] == "stage");
  CHECK(json["deviations"][0]["index"] == 1);
}

}  // namespace
}  // namespace geopipe
