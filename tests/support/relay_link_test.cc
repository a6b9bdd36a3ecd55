#include "tests/support/relay_link.h"

#include <catch2/catch.hpp>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

std::vector<std::byte> Packet(size_t bytes, int mark) { return std::vector<std::byte>(bytes, std::byte(mark)); }

TEST_CASE("a packet takes its bytes over the bandwidth and the latency, one after the other") {
  RelayLink link({.latency_ns = 30 * kMs, .bandwidth_bytes_per_s = 1e6});
  link.Push(5 * kMs, Packet(10'000, 1));  // 10 ms
  link.Push(6 * kMs, Packet(20'000, 2));  // begins at 15 ms
  CHECK(link.NextDueNs() == 45 * kMs);
  CHECK_FALSE(link.PopDue(45 * kMs - 1).has_value());
  CHECK(link.PopDue(45 * kMs) == Packet(10'000, 1));
  CHECK(link.NextDueNs() == 65 * kMs);
  CHECK(link.PopDue(65 * kMs) == Packet(20'000, 2));
  CHECK(link.NextDueNs() == RelayLink::kNeverNs);
  // The wire has been free meanwhile.
  link.Push(100 * kMs, Packet(1000, 3));
  CHECK(link.NextDueNs() == 131 * kMs);
}

TEST_CASE("what finds no room in the queue is dropped") {
  RelayLink link({.bandwidth_bytes_per_s = 1e6, .queue_bytes = 3000});
  for (int i = 0; i < 5; ++i) {
    link.Push(0, Packet(1000, i));
  }
  CHECK(link.counters().packets == 3);
  CHECK(link.counters().dropped_full == 2);
  CHECK(link.counters().longest_queue_bytes == 3000);
  // A millisecond later one has left.
  link.Push(kMs, Packet(1000, 5));
  CHECK(link.counters().packets == 4);
}

TEST_CASE("a cut loses what is on its way and what comes until its end") {
  RelayLink link({.latency_ns = 30 * kMs});
  link.Push(0, Packet(10, 1));
  link.Cut(100 * kMs);
  CHECK(link.NextDueNs() == RelayLink::kNeverNs);
  link.Push(99 * kMs, Packet(10, 2));
  link.Push(100 * kMs, Packet(10, 3));
  CHECK(link.counters().dropped_cut == 2);
  CHECK(link.PopDue(130 * kMs) == Packet(10, 3));
  CHECK_FALSE(link.PopDue(1000 * kMs).has_value());
}

TEST_CASE("a latency that falls lets nothing overtake") {
  RelayLink link({.latency_ns = 30 * kMs});
  link.Push(0, Packet(10, 1));
  link.SetOptions({.latency_ns = 1 * kMs});
  link.Push(kMs, Packet(10, 2));
  CHECK(link.PopDue(30 * kMs) == Packet(10, 1));
  CHECK(link.PopDue(30 * kMs) == Packet(10, 2));
}

}  // namespace
}  // namespace geopipe
