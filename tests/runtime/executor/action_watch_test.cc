#include "runtime/executor/action_watch.h"

#include <catch2/catch.hpp>

#include "tests/support/fake_clock.h"

namespace geopipe {
namespace {

const Action kForward{0, ActionKind::kForward, 3};
const Action kBackward{0, ActionKind::kBackward, 2};

TEST_CASE("an action is under way until its call returns, or until the device has done its work") {
  ActionWatch watch;
  FakeClock clock;
  CHECK_FALSE(watch.Now().has_value());
  clock.AdvanceNs(10);
  Completion forward = Completion::Pending();
  Completion backward = Completion::Pending();
  {
    ActionWatch::Scope scope(&watch, kForward, clock);
    CHECK(watch.Now()->action == kForward);
    scope.Enqueued(forward);
  }
  clock.AdvanceNs(10);
  {
    ActionWatch::Scope scope(&watch, kBackward, clock);
    scope.Enqueued(backward);
  }
  CHECK(watch.Now()->action == kForward);
  CHECK(watch.Now()->since_ns == clock.NowNs() - 10);
  forward.Complete(0, clock.NowNs() + 500);
  CHECK(watch.Now()->action == kBackward);
  CHECK(watch.Now()->since_ns == clock.NowNs() + 500);  // it had to wait for the device until then
  backward.Fail(absl::InternalError("lost"));
  CHECK_FALSE(watch.Now().has_value());
  { const ActionWatch::Scope failed(&watch, kForward, clock); }
  CHECK_FALSE(watch.Now().has_value());
}

TEST_CASE("an action that waits for other ranks is not under way, but those that the device is still at are") {
  ActionWatch watch;
  FakeClock clock;
  Completion forward = Completion::Pending();
  {
    ActionWatch::Scope scope(&watch, kForward, clock);
    {
      const ActionWatch::Break waits(watch, clock);
      CHECK_FALSE(watch.Now().has_value());
      clock.AdvanceNs(7);
    }
    CHECK(watch.Now()->since_ns == clock.NowNs());
    scope.Enqueued(forward);
  }
  {
    const ActionWatch::Scope scope(&watch, kBackward, clock);
    const ActionWatch::Break waits(watch, clock);
    CHECK(watch.Now()->action == kForward);
    forward.Complete(0, 0);
    CHECK_FALSE(watch.Now().has_value());
  }
  { const ActionWatch::Break outside(watch, clock); }
  CHECK_FALSE(watch.Now().has_value());
}

TEST_CASE("work may outlive the watch that waits for its end") {
  FakeClock clock;
  Completion forward = Completion::Pending();
  {
    ActionWatch watch;
    ActionWatch::Scope scope(&watch, kForward, clock);
    scope.Enqueued(forward);
  }
  forward.Complete(0, 1);
}

}  // namespace
}  // namespace geopipe
