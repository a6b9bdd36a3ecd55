#include "runtime/executor/step_recorder.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("actions are recorded from the first one's start") {
  StepRecorder recorder;
  recorder.Begin(2);
  CHECK_FALSE(recorder.origin_ns().has_value());
  const Action forward{0, ActionKind::kForward, 0};
  const Action backward{0, ActionKind::kBackward, 0};
  recorder.Record(forward, 1000, 1300, 300);
  recorder.Record(backward, 1500, 2000, 501);
  CHECK(recorder.origin_ns() == 1000);
  CHECK(recorder.busy_ns() == 801);
  CHECK(recorder.Take() == std::vector<ActionRecord>{{forward, 0, 300}, {backward, 500, 1000}});
  recorder.Begin(2);
  CHECK(recorder.busy_ns() == 0);
  CHECK(recorder.Take().empty());
}

TEST_CASE("messages are recorded beside the actions, before the first one too, and are no work") {
  StepRecorder recorder;
  recorder.Begin(3);
  const Action receive{1, ActionKind::kRecvForward, 0};
  const Action forward{1, ActionKind::kForward, 0};
  const Action send{1, ActionKind::kSendForward, 0};
  recorder.RecordMessage(receive, 900, 990);
  CHECK_FALSE(recorder.origin_ns().has_value());
  recorder.Record(forward, 1000, 1300, 300);
  recorder.RecordMessage(send, 1300, 1310);
  CHECK(recorder.busy_ns() == 300);
  CHECK(recorder.Take() == std::vector<ActionRecord>{{receive, -100, -10}, {forward, 0, 300}, {send, 300, 310}});
}

}  // namespace
}  // namespace geopipe
