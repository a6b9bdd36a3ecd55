#include "coordinator/cli/progress.h"

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/cli/render/format.h"
#include "runtime/base/wrap.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

TEST_CASE("progress says what is known: time, candidates, the best, steps and what is left of them") {
  CHECK(ProgressText({.what = "planning"}, 12 * kSecond) == "planning: 12 s");
  CHECK(ProgressText({.what = "planning", .evaluations = 1'834, .best_ns = 9'880'000'000}, 12 * kSecond) ==
        "planning: 12 s, 1,834 evaluations, best 9.880 s");
  CHECK(ProgressText({.what = "costs", .limit_ns = 7 * kSecond}, 3 * kSecond) == "costs: 3 s of at most 7 s");
  CHECK(ProgressText({.what = "sweep", .done = 0, .total = 26, .points = 13}, 2 * kSecond) ==
        "sweep: 0 of 13 points, 2 s");
  // Two steps a point: half of them are done.
  CHECK(ProgressText({.what = "sweep", .done = 13, .total = 26, .points = 13}, 20 * kSecond) ==
        "sweep: 6 of 13 points, about 20 s left");
  CHECK(ProgressText({.what = "sweep", .done = 99, .total = 26, .points = 13}, kSecond) ==
        "sweep: 13 of 13 points, about 0 s left");
}

TEST_CASE("on a terminal a line appears after a second, is written over four times a second, and goes at the end") {
  ProgressPacer pacer(80);
  const Progress progress{.what = "planning"};
  pacer.Begin(100 * kSecond);
  CHECK(pacer.At(100 * kSecond, progress).empty());
  CHECK(pacer.At(101 * kSecond - 1, progress).empty());
  CHECK(pacer.next_ns() == 101 * kSecond);
  CHECK(pacer.At(101 * kSecond, progress) == "\r\x1b[Kplanning: 1 s");
  CHECK(pacer.At(101 * kSecond + 1, progress).empty());
  CHECK(pacer.At(101 * kSecond + kSecond / 4, progress) == "\r\x1b[Kplanning: 1 s");
  pacer.Begin(102 * kSecond);  // what follows takes its place at once
  CHECK(pacer.At(102 * kSecond, {.what = "more"}) == "\r\x1b[Kmore: 0 s");
  CHECK(pacer.End() == "\r\x1b[K");
  CHECK(pacer.End().empty());
  pacer.Begin(110 * kSecond);
  CHECK(pacer.At(110 * kSecond, progress).empty());
}

TEST_CASE("work that is over within a second leaves a terminal alone") {
  ProgressPacer pacer(80);
  pacer.Begin(0);
  CHECK(pacer.At(kSecond / 2, {.what = "planning"}).empty());
  CHECK(pacer.End().empty());
}

TEST_CASE("a line fits its terminal, whole characters of it") {
  ProgressPacer pacer(12);
  pacer.Begin(0);
  const std::string line = pacer.At(2 * kSecond, {.what = "größeres"});
  CHECK(line == "\r\x1b[Kgrößeres: 2");
  CHECK(DisplayWidth(line) == 4 + 11);
}

TEST_CASE("a log has a plain line no sooner than ten seconds after the last, however often something begins") {
  ProgressPacer pacer(0);
  const Progress progress{.what = "sweep"};
  std::vector<int64_t> written;
  for (int64_t second = 0; second < 60; ++second) {
    if (second % 3 == 0) {
      pacer.Begin(second * kSecond);
    }
    const std::string line = pacer.At(second * kSecond, progress);
    if (!line.empty()) {
      CHECK(line.ends_with("\n"));
      CHECK(line.find('\x1b') == std::string::npos);
      written.push_back(second);
    }
  }
  CHECK(written == std::vector<int64_t>{10, 20, 31, 41, 52});  // not in the first second of a piece
  CHECK(pacer.End().empty());
}

TEST_CASE("a meter is told by many threads, begins, ends and begins again") {
  ProgressMeter meter;
  for (int round = 0; round < 3; ++round) {
    meter.Begin({.what = "planning"});
    std::vector<std::thread> threads;
    for (int64_t thread = 1; thread <= 4; ++thread) {
      threads.emplace_back([&meter, thread] {
        for (int64_t i = 0; i < 1'000; ++i) {
          meter.Searched(i, thread);
          meter.Did(i, 1'000);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    meter.End();
  }
}

}  // namespace
}  // namespace geopipe
