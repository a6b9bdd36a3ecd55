#include "tests/support/chaos_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

using Kind = ChaosFault::Kind;

const std::vector<std::string> kSites{"north", "east", "west"};

std::vector<ChaosFault> HalfAnHour(uint64_t seed) {
  return DrawChaos({.seed = seed, .span_ns = 1800 * kSecond, .every_ns = 25 * kSecond});
}

TEST_CASE("half an hour has more than sixty faults in order, of every kind, and one restore in its middle third") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const std::vector<ChaosFault> faults = HalfAnHour(seed);
    REQUIRE(faults.size() == 71);
    std::set<Kind> kinds;
    for (size_t i = 0; i < faults.size(); ++i) {
      const ChaosFault& fault = faults[i];
      kinds.insert(fault.kind);
      CHECK(fault.at_ns >= static_cast<int64_t>(i) * 25 * kSecond);
      CHECK(fault.at_ns < static_cast<int64_t>(i) * 25 * kSecond + 12'500 * kMs);
      CHECK(fault.target < ChaosTargets(fault.kind, kSites).size());
      CHECK(fault.duration_ns <= 30 * kSecond);
      CHECK((fault.duration_ns >= kSecond) == (fault.kind != Kind::kKill && fault.kind != Kind::kRestore));
      if (fault.kills) {
        CHECK((fault.kind == Kind::kKeeper || (fault.kind >= Kind::kDescriptors && fault.kind <= Kind::kEstale)));
      }
    }
    CHECK(kinds.size() == kChaosKinds.size());
    CHECK(std::ranges::count(faults, Kind::kRestore, &ChaosFault::kind) == 1);
    const auto restore = std::ranges::find(faults, Kind::kRestore, &ChaosFault::kind);
    CHECK(restore->at_ns >= 550 * kSecond);
    CHECK(restore->at_ns < 1250 * kSecond);
  }
}

TEST_CASE("the same seed draws the same faults, and another one others") {
  const auto text = [](const std::vector<ChaosFault>& faults) {
    std::string all;
    for (const ChaosFault& fault : faults) {
      all += fmt::format("{} {} {} {} {}\n", ChaosKindName(fault.kind), fault.target, fault.at_ns, fault.duration_ns,
                         fault.kills);
    }
    return all;
  };
  CHECK(text(HalfAnHour(1)) == text(HalfAnHour(1)));
  CHECK(text(HalfAnHour(1)) != text(HalfAnHour(2)));
}

TEST_CASE("fewer faults than kinds are all of other kinds, and no others are drawn than are asked for") {
  const std::vector<ChaosFault> few = DrawChaos({.span_ns = 60 * kSecond, .every_ns = 10 * kSecond});
  CHECK(few.size() == 5);
  std::set<Kind> kinds;
  std::ranges::transform(few, std::inserter(kinds, kinds.end()), &ChaosFault::kind);
  CHECK(kinds.size() == few.size());
  const std::vector<ChaosFault> same =
      DrawChaos({.span_ns = 60 * kSecond, .every_ns = 10 * kSecond, .kinds = {Kind::kEio, Kind::kCut}});
  CHECK(same.size() == 5);
  CHECK(std::ranges::all_of(same, [](const auto& each) { return each.kind == Kind::kEio || each.kind == Kind::kCut; }));
  CHECK(DrawChaos({.span_ns = 60 * kSecond, .every_ns = 10 * kSecond, .kinds = {Kind::kRestore}}).size() == 1);
  CHECK(DrawChaos({.span_ns = 5 * kSecond, .every_ns = 10 * kSecond}).empty());
}

TEST_CASE("faults that keep a rank from training may cost their duration besides") {
  const auto bar = [](Kind kind, size_t target, bool kills = false) {
    return ChaosBarNs({.kind = kind, .target = target, .duration_ns = 7 * kSecond, .kills = kills}, 3) / kSecond;
  };
  CHECK(ChaosTargets(Kind::kStop, kSites) == std::vector<std::string>{"coordinator", "agent north", "agent east",
                                                                      "agent west", "worker north", "worker east",
                                                                      "worker west"});
  CHECK(bar(Kind::kStop, 0) == 5);
  CHECK(bar(Kind::kStop, 3) == 5);
  CHECK(bar(Kind::kStop, 4) == 12);
  CHECK(bar(Kind::kStop, 6) == 12);
  CHECK(bar(Kind::kKill, 9) == 5);
  CHECK(bar(Kind::kKeeper, 1) == 5);
  CHECK(bar(Kind::kKeeper, 1, true) == 12);
  CHECK(bar(Kind::kCut, 0) == 12);
  CHECK(bar(Kind::kFull, 1) == 5);
  CHECK(bar(Kind::kDescriptors, 2) == 5);
  CHECK(bar(Kind::kDescriptors, 2, true) == 12);
  CHECK(bar(Kind::kDescriptors, 0, true) == 5);
  CHECK(bar(Kind::kFork, 0, true) == 12);
  CHECK(bar(Kind::kEio, 0) == 5);
  CHECK(bar(Kind::kEio, 1) == 12);
  CHECK(bar(Kind::kRestore, 0) == 12);
}

TEST_CASE("targets are of the coordinator, and then of the sites in order") {
  for (const Kind kind : kChaosKinds) {
    const std::vector<std::string> names = ChaosTargets(kind, kSites);
    for (size_t target = 0; target < names.size(); ++target) {
      const ChaosFault fault{.kind = kind, .target = target};
      CAPTURE(names[target]);
      CHECK(IsOfCoordinator(fault) == names[target].ends_with("coordinator"));
      if (kind != Kind::kCut && !IsOfCoordinator(fault)) {
        CHECK(names[target].ends_with(" " + kSites[ChaosSite(fault, 3)]));
      }
    }
  }
  CHECK(ChaosTargets(Kind::kCut, kSites) ==
        std::vector<std::string>{"link north-east", "link north-west", "link east-west"});
}

// An iteration a second, looked at twice as often.
std::vector<ChaosProgress> Undisturbed(int64_t from_ns, int64_t to_ns, int64_t iterations) {
  std::vector<ChaosProgress> progress;
  for (int64_t at_ns = from_ns; at_ns <= to_ns; at_ns += kSecond / 2) {
    progress.push_back({at_ns, iterations + (at_ns - from_ns) / kSecond});
  }
  return progress;
}

TEST_CASE("a fault that disturbs nothing costs nothing, wherever in an iteration it begins") {
  const std::vector<ChaosProgress> progress = Undisturbed(0, 30 * kSecond, 5);
  const std::vector<int64_t> begins{10'300 * kMs, 19'900 * kMs};
  const std::vector<int64_t> costs = ChaosCosts(progress, begins, kSecond);
  REQUIRE(costs.size() == 2);
  CHECK(costs[0] == Approx(0).margin(1));
  CHECK(costs[1] == Approx(0).margin(1));
}

TEST_CASE("the time without progress is a fault's cost, and so are iterations that are done once more") {
  std::vector<ChaosProgress> progress = Undisturbed(0, 10 * kSecond, 0);
  // 4 s nothing is done, and when it goes on two iterations are lost.
  progress.push_back({12 * kSecond, 10});
  std::ranges::copy(Undisturbed(14 * kSecond, 30 * kSecond, 8), std::back_inserter(progress));
  const std::vector<int64_t> begins{10 * kSecond, 20 * kSecond};
  const std::vector<int64_t> costs = ChaosCosts(progress, begins, kSecond);
  REQUIRE(costs.size() == 2);
  CHECK(costs[0] == Approx(6 * kSecond).margin(1));
  CHECK(costs[1] == Approx(0).margin(1));
  // In the middle of a stand, no more than one iteration is under way.
  const std::vector<int64_t> late{13 * kSecond};
  CHECK(ChaosCosts(progress, late, kSecond)[0] == Approx(17 * kSecond - 13 * kSecond).margin(1));
}

TEST_CASE("of a run that is never heard of again, all time is lost") {
  const std::vector<ChaosProgress> progress = Undisturbed(0, 10 * kSecond, 0);
  const std::vector<int64_t> begins{10 * kSecond, 20 * kSecond};
  CHECK(ChaosCosts(progress, begins, kSecond) == std::vector<int64_t>{10 * kSecond, 0});
  CHECK(ChaosCosts({}, begins, kSecond) == std::vector<int64_t>{10 * kSecond, 0});
  CHECK(ChaosCosts(progress, {}, kSecond).empty());
}

}  // namespace
}  // namespace geopipe
