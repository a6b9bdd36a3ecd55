#include "runtime/gpu/gpu_clock.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

namespace geopipe {
namespace {

constexpr int64_t kUs = 1000;
constexpr int64_t kSecond = 1'000'000'000;

GpuClock::Event NewEvent() { return std::make_shared<int>(0); }

TEST_CASE("device time counts from the anchor, which stays for a second") {
  GpuClock clock(NewEvent(), 500);
  const GpuClock::Event anchor = clock.anchor();
  CHECK(clock.HostNs(70) == 570);
  CHECK(clock.HostNs(-70) == 430);
  clock.Note(NewEvent(), 1000, 2000);
  CHECK(clock.anchor() == anchor);
  CHECK(clock.HostNs(70) == 570);
}

TEST_CASE("the anchor moves to the event that was seen soonest, however late others were seen") {
  GpuClock clock(NewEvent(), 0);
  const GpuClock::Event soonest = NewEvent();
  clock.Note(NewEvent(), 100 * kUs, 190 * kUs);
  clock.Note(soonest, 200 * kUs, 220 * kUs);
  clock.Note(NewEvent(), kSecond, kSecond + 100'000 * kUs);
  CHECK(clock.anchor() == soonest);
  CHECK(clock.HostNs(0) == 220 * kUs);
}

TEST_CASE("a clock that drifts is followed either way, though the host sleeps now and then") {
  for (const int64_t parts_per_million : {-50, 0, 50}) {
    INFO("drift " << parts_per_million);
    std::map<GpuClock::Event, int64_t> device_times;
    GpuClock clock(NewEvent(), 0);
    device_times[clock.anchor()] = 0;
    for (int64_t i = 1; i <= 600; ++i) {
      const int64_t device_ns = i * kSecond / 10;
      const int64_t host_ns = device_ns + device_ns / 1'000'000 * parts_per_million;
      const int64_t elapsed_ns = device_ns - device_times.at(clock.anchor());
      CHECK(std::abs(clock.HostNs(elapsed_ns) - host_ns) <= 130 * kUs);
      const GpuClock::Event event = NewEvent();
      device_times[event] = device_ns;
      clock.Note(event, elapsed_ns, host_ns + (i % 3 == 0 ? 80'000 : 10) * kUs);
    }
    CHECK(device_times.at(clock.anchor()) > 58 * kSecond);
  }
}

TEST_CASE("an event seen before the map has it over moves the map back by all of it") {
  GpuClock clock(NewEvent(), 10'000 * kUs);  // the host slept when the first event was over
  clock.Note(NewEvent(), 100 * kUs, 110 * kUs);
  clock.Note(NewEvent(), kSecond, kSecond + 20 * kUs);
  CHECK(clock.HostNs(0) == 110 * kUs);
}

TEST_CASE("a first event that is seen late after a pause moves the map by no more than clocks drift") {
  GpuClock clock(NewEvent(), 0);
  clock.Note(NewEvent(), 10 * kSecond, 11 * kSecond);
  CHECK(clock.HostNs(0) == 10 * kSecond + 10 * kSecond / 5000);
}

}  // namespace
}  // namespace geopipe
