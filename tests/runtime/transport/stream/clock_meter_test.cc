#include "runtime/transport/stream/clock_meter.h"

#include <catch2/catch.hpp>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

// Two ends, the second one's clock ahead by `skew_ns`. Every frame tells its receiver what its sender has to tell.
struct Ends {
  void Cross(ClockMeter& from, ClockMeter& to, int64_t from_now_ns, int64_t to_now_ns) {
    const int64_t told_ns = from.TakeMin();
    to.OnArrival(to_now_ns, from_now_ns);
    to.OnTold(to_now_ns, told_ns);
  }
  void There(int64_t delay_ns) { Cross(first, second, now_ns, now_ns + delay_ns + skew_ns); }
  void Back(int64_t delay_ns) { Cross(second, first, now_ns + skew_ns, now_ns + delay_ns); }
  PeerClock First() const { return first.At(now_ns); }
  PeerClock Second() const { return second.At(now_ns + skew_ns); }

  int64_t now_ns = 5 * kSecond;
  int64_t skew_ns = 77 * kSecond;
  ClockMeter first;
  ClockMeter second;
};

TEST_CASE("nothing is said before both ways are known") {
  Ends ends;
  CHECK(ends.first.TakeMin() == kNeverNs);
  ends.Back(kMs);
  CHECK(ends.First().round_trip_ns == 0);  // the second end had seen nothing
  ends.There(kMs);
  CHECK(ends.Second().round_trip_ns == 2 * kMs);
  CHECK(ends.First().round_trip_ns == 0);
  ends.Back(kMs);
  CHECK(ends.First().round_trip_ns == 2 * kMs);
}

TEST_CASE("the quickest crossing each way counts, and the ends agree") {
  Ends ends;
  for (const int64_t delay_ns : {7 * kMs, 2 * kMs, 9 * kMs}) {
    ends.There(delay_ns);
    ends.Back(11 * kMs - delay_ns);  // never both quick
    ends.now_ns += 20 * kMs;
  }
  ends.There(9 * kMs);
  CHECK(ends.First().round_trip_ns == 4 * kMs);
  CHECK(ends.First().offset_ns == 77 * kSecond);
  CHECK(ends.Second().round_trip_ns == 4 * kMs);
  CHECK(ends.Second().offset_ns == -77 * kSecond);
}

TEST_CASE("what the ways differ in makes half of that the error") {
  Ends ends;
  ends.There(3 * kMs);
  ends.Back(kMs);
  CHECK(ends.First().offset_ns == 77 * kSecond + kMs);
}

TEST_CASE("nothing older than twenty seconds counts, however quiet it was") {
  for (const int64_t pause_ns : {9 * kSecond, 12 * kSecond, 21 * kSecond, 60 * kSecond, 3600 * kSecond}) {
    Ends ends;
    ends.There(kMs);
    ends.Back(kMs);
    ends.now_ns += pause_ns;
    INFO(pause_ns / kSecond);
    const bool recent = pause_ns < 20 * kSecond;
    CHECK(ends.First().round_trip_ns == (recent ? 2 * kMs : 0));
    ends.There(5 * kMs);
    ends.Back(5 * kMs);
    CHECK(ends.First().round_trip_ns == (recent ? 2 : 10) * kMs);
    CHECK(ends.First().offset_ns == 77 * kSecond);
  }
}

TEST_CASE("a frame that is late or duplicated changes nothing") {
  Ends ends;
  ends.There(2 * kMs);
  const int64_t told_ns = ends.second.TakeMin();
  ends.first.OnTold(ends.now_ns, told_ns);
  ends.Back(2 * kMs);
  REQUIRE(ends.First().round_trip_ns == 4 * kMs);
  ends.first.OnTold(ends.now_ns, told_ns + 30 * kMs);  // told before, of a crossing that waited
  ends.first.OnArrival(ends.now_ns + 50 * kMs, ends.now_ns + 77 * kSecond);
  CHECK(ends.First().round_trip_ns == 4 * kMs);
  CHECK(ends.First().offset_ns == 77 * kSecond);
}

TEST_CASE("a new path is measured anew") {
  Ends ends;
  ends.There(kMs);
  ends.Back(kMs);
  ends.first.Restart();
  ends.second.Restart();
  CHECK(ends.First().round_trip_ns == 0);
  CHECK(ends.first.TakeMin() == kNeverNs);
  ends.There(20 * kMs);
  ends.Back(20 * kMs);
  CHECK(ends.First().round_trip_ns == 40 * kMs);
}

TEST_CASE("figures that contradict each other are none, and it passes") {
  Ends ends;
  ends.There(kMs);
  ends.Back(kMs);
  ends.skew_ns -= 5 * kSecond;  // the second end stood still
  ends.There(kMs);
  ends.Back(kMs);
  CHECK(ends.First().round_trip_ns == 0);
  for (int i = 0; i < 3; ++i) {
    ends.now_ns += 10 * kSecond;
    ends.There(kMs);
    ends.Back(kMs);
  }
  CHECK(ends.First().round_trip_ns == 2 * kMs);
  CHECK(ends.First().offset_ns == 72 * kSecond);
}

}  // namespace
}  // namespace geopipe
