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
  recorder.Record(forward, 1000, 1300);
  recorder.Record(backward, 1500, 2000);
  CHECK(recorder.origin_ns() == 1000);
  CHECK(recorder.busy_ns() == 800);
  CHECK(recorder.Take() == std::vector<ActionRecord>{{forward, 0, 300}, {backward, 500, 1000}});
  recorder.Begin(2);
  CHECK(recorder.busy_ns() == 0);
  CHECK(recorder.Take().empty());
}

}  // namespace
}  // namespace geopipe
