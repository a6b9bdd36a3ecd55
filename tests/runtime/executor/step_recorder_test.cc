#include "runtime/executor/step_recorder.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("actions are recorded from the first one's begin") {
  StepRecorder recorder;
  recorder.Begin(2);
  CHECK_FALSE(recorder.begun_ns().has_value());
  const Action forward{0, ActionKind::kForward, 0};
  const Action backward{0, ActionKind::kBackward, 0};
  const Completion done(1000, 1300);
  recorder.Record(forward, done);
  recorder.Record(backward, {1500, 2000});
  CHECK(recorder.begun_ns() == 1000);
  const auto timings = recorder.Take();
  REQUIRE(timings.has_value());
  CHECK(timings->begun_ns == 1000);
  CHECK(timings->busy_ns == 800);
  CHECK(timings->actions == std::vector<ActionRecord>{{forward, 0, 300}, {backward, 500, 1000}});
  recorder.Begin(2);
  CHECK_FALSE(recorder.Take().has_value());
}

TEST_CASE("messages are recorded beside the actions, before the first one too, and are no work") {
  StepRecorder recorder;
  recorder.Begin(3);
  const Action receive{1, ActionKind::kRecvForward, 0};
  const Action forward{1, ActionKind::kForward, 0};
  const Action send{1, ActionKind::kSendForward, 0};
  recorder.RecordMessage(receive, Completion::At(900), 990);
  CHECK_FALSE(recorder.begun_ns().has_value());
  const Completion done(1000, 1300);
  recorder.Record(forward, done);
  recorder.RecordMessage(send, done, 0);
  recorder.RecordMessage(send, done, 1310);  // held until then
  const auto timings = recorder.Take();
  REQUIRE(timings.has_value());
  CHECK(timings->busy_ns == 300);
  CHECK(timings->actions ==
        std::vector<ActionRecord>{{receive, -100, -10}, {forward, 0, 300}, {send, 300, 300}, {send, 300, 310}});
}

TEST_CASE("what is under way is told when it is over") {
  StepRecorder recorder;
  recorder.Begin(1);
  Completion pending = Completion::Pending();
  const Action forward{0, ActionKind::kForward, 0};
  recorder.Record(forward, pending);
  CHECK_FALSE(recorder.begun_ns().has_value());
  pending.Complete(50, 80);
  CHECK(recorder.begun_ns() == 50);
  CHECK(recorder.Take()->busy_ns == 30);
}

}  // namespace
}  // namespace geopipe
