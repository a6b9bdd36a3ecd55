#include "runtime/transport/probe/bandwidth_ladder.h"

#include <catch2/catch.hpp>
#include <functional>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int64_t kKiB = 1024;

TEST_CASE("quantiles lie between neighbours, and the spread is half of the middle half") {
  CHECK(QuantileOf({5, 1, 3}, 0.5) == 3);
  CHECK(QuantileOf({1, 2}, 0.5) == 1.5);
  CHECK(QuantileOf({7}, 0.9) == 7);
  const MedianSpread figure = MedianSpreadOf({1, 2, 3, 4, 100});
  CHECK(figure.median == 3);
  CHECK(figure.spread == 1);
  CHECK(figure.samples == 5);
  CHECK(MedianSpreadOf({}).samples == 0);
}

// A train of `frames` of 64 KiB at 1 byte per ns, arrivals moved by `late_ns`.
std::optional<double> RateOf(int frames, const std::function<int64_t(int)>& late_ns) {
  TrainMeter meter;
  for (int i = 0; i < frames; ++i) {
    const int64_t end = (i + 1) * 64 * kKiB;
    meter.Add(end, end + late_ns(i));
  }
  return meter.Rate();
}

TEST_CASE("a train's rate does not follow single late arrivals, a late beginning or lost frames") {
  CHECK(*RateOf(16, [](int) { return 0; }) == Approx(1e9));
  CHECK(*RateOf(64, [](int i) { return i == 0 || i == 63 ? 5 * kMs : 0; }) == Approx(1e9));
  // Noticed in bunches of four.
  CHECK(*RateOf(64, [](int i) { return (3 - i % 4) * 64 * kKiB; }) == Approx(1e9));
  // Every third frame is lost.
  TrainMeter holes;
  for (int64_t i = 0; i < 60; ++i) {
    if (i % 3 != 0) {
      holes.Add(i * 64 * kKiB, i * 64 * kKiB);
    }
  }
  CHECK(*holes.Rate() == Approx(1e9));
  CHECK_FALSE(RateOf(3, [](int) { return 0; }).has_value());
}

struct Climb {
  std::vector<int64_t> sizes;
  std::vector<int32_t> trains;
  BandwidthLadder ladder{25 * kMs};
};

// `rate(bytes, nth)`: what a train measures.
Climb ClimbOn(int64_t budget_ns, const std::function<double(int64_t, int)>& rate) {
  Climb climb;
  int nth = 0;
  for (auto round = climb.ladder.Next(budget_ns); round.has_value(); round = climb.ladder.Next(budget_ns)) {
    REQUIRE(climb.sizes.size() < 20);
    climb.sizes.push_back(round->bytes);
    climb.trains.push_back(round->trains);
    std::vector<double> rates;
    for (int32_t i = 0; i < round->trains; ++i) {
      rates.push_back(rate(round->bytes, nth++));
      budget_ns -= static_cast<int64_t>(static_cast<double>(round->bytes) / rates.back() * 1e9);
    }
    climb.ladder.Add(*round, rates);
  }
  return climb;
}

TEST_CASE("trains grow until they are long enough, and three of one size are asked for") {
  const Climb slow = ClimbOn(1500 * kMs, [](int64_t, int) { return 1.25e6; });
  CHECK(slow.sizes == std::vector<int64_t>{64 * kKiB, 64 * kKiB});
  CHECK(slow.trains == std::vector<int32_t>{1, 2});
  CHECK(slow.ladder.Result().samples == 3);

  const Climb fast = ClimbOn(1500 * kMs, [](int64_t, int) { return 250e6; });
  CHECK(fast.sizes == std::vector<int64_t>{64 * kKiB, 1024 * kKiB, 16384 * kKiB});
  CHECK(fast.trains == std::vector<int32_t>{1, 1, 3});
  CHECK(fast.ladder.Result().median == 250e6);
}

TEST_CASE("a window that opens is waited for") {
  const Climb climb = ClimbOn(1500 * kMs, [](int64_t, int nth) { return nth < 6 ? 2e6 * (nth + 1) : 12.5e6; });
  CHECK(climb.ladder.Result().median == Approx(12.5e6).epsilon(0.05));
}

TEST_CASE("a link that never agrees with itself, or is too slow for its budget, still gives a figure") {
  const Climb wild = ClimbOn(1500 * kMs, [](int64_t, int nth) { return nth % 2 == 0 ? 100e6 : 50e6; });
  CHECK(wild.ladder.Result().samples > 0);
  CHECK(wild.ladder.Result().spread > 1e6);
  const Climb crawling = ClimbOn(1500 * kMs, [](int64_t, int) { return 60e3; });
  CHECK(crawling.sizes == std::vector<int64_t>{64 * kKiB});
  CHECK(crawling.ladder.Result().median == 60e3);
}

TEST_CASE("rounds of which nothing arrives end the climb") {
  BandwidthLadder ladder(25 * kMs);
  int rounds = 0;
  for (auto round = ladder.Next(kMs); round.has_value(); round = ladder.Next(kMs)) {
    REQUIRE(++rounds < 10);
    ladder.Add(*round, {});
  }
  CHECK(rounds == 2);
  CHECK(ladder.Result().samples == 0);
}

}  // namespace
}  // namespace geopipe
