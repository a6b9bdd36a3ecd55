#include "runtime/rehearsal/link/crossing_meter.h"

#include <catch2/catch.hpp>
#include <vector>

#include "runtime/rehearsal/link/link_shaper.h"
#include "tests/support/durations.h"
#include "tests/support/fake_clock.h"
#include "tests/support/loopback_frame.h"

namespace geopipe {
namespace {

constexpr int64_t kUs = 1'000;

TEST_CASE("the lower quarter of the latest values counts") {
  RecentLow recent;
  CHECK(recent.low() == 0);
  recent.Add(50);
  CHECK(recent.low() == 50);
  for (const int64_t value : {90, 10, 70}) {
    recent.Add(value);
  }
  CHECK(recent.low() == 50);
  for (int i = 0; i < 32; ++i) {
    recent.Add(200);
  }
  CHECK(recent.low() == 200);  // the old ones are forgotten
}

TEST_CASE("two meters tell each other the time, and nothing else passes for theirs") {
  CrossingMeter a;
  CrossingMeter b;
  CHECK_FALSE(a.Next(0).has_value());
  a.Start();
  int64_t now_ns = 1000;
  int echoes = 0;
  for (auto request = a.Next(now_ns); request.has_value(); request = a.Next(now_ns)) {
    CHECK_FALSE(a.Next(now_ns).has_value());  // one at a time
    b.OnHeader(now_ns += 40, *TimedHeader::Decode(request->Encode()));
    const auto echo = b.Next(now_ns);
    REQUIRE(echo.has_value());
    a.OnHeader(now_ns += 60, *TimedHeader::Decode(echo->Encode()));
    ++echoes;
  }
  CHECK(echoes == CrossingMeter::kEchoes);
  CHECK(a.crossing_ns() == 50);
  CHECK(b.crossing_ns() == 0);
  CHECK_FALSE(TimedHeader::Decode(std::vector<std::byte>(TimedHeader::kBytes)).has_value());
  CHECK_FALSE(TimedHeader::Decode(std::vector<std::byte>(40)).has_value());
  auto alone = TimedHeader{TimedHeader::Kind::kEcho, 5}.Encode();
  std::vector<std::byte> longer(alone.begin(), alone.end());
  longer.push_back(std::byte{0});
  CHECK_FALSE(TimedHeader::Decode(longer).has_value());
}

// Sends a frame every 2 ms and notes how long those of the other end took.
class Stopwatch final : public FrameSink {
 public:
  Stopwatch(PeerId peer, const Clock& clock) : peer_(peer), clock_(clock) {}
  void OnFrame(PeerId /*from*/, const Frame& frame) override {
    int64_t sent_ns = 0;
    REQUIRE(frame.header.size() == sizeof sent_ns);
    std::memcpy(&sent_ns, frame.header.data(), sizeof sent_ns);
    took_ns.push_back(clock_.NowNs() - sent_ns);
  }
  void OnPeerUp(PeerId /*peer*/) override { next_ns_ = clock_.NowNs() + 10 * kMs; }
  void OnPeerDown(PeerId /*peer*/, const absl::Status& /*why*/) override {}
  int64_t OnProgress(int64_t now_ns) override {
    if (now_ns >= next_ns_) {
      next_ns_ = now_ns + 2 * kMs;
      std::vector<std::byte> header(sizeof now_ns);
      std::memcpy(header.data(), &now_ns, sizeof now_ns);
      carrier->Send(peer_, {header, {}, now_ns}, [] {});
    }
    return next_ns_;
  }

  FrameCarrier* carrier = nullptr;
  std::vector<int64_t> took_ns;

 private:
  const PeerId peer_;
  const Clock& clock_;
  int64_t next_ns_ = kNeverNs;
};

TEST_CASE("a shaper that measures its carrier gives a frame the latency that it was told") {
  constexpr int64_t kLatencyNs = 1 * kMs;
  FakeClock clock;
  clock.AdvanceNs(kMs);
  LoopbackNetwork network(0, 1, 64 * 1024, 1);
  network.set_faults({.latency_ns = 40 * kUs});
  Stopwatch low(1, clock);
  Stopwatch high(0, clock);
  const auto shape = [&](PeerId peer) {
    return LinkShaperOptions{.shapes = {{.peer_rank = peer, .latency_ns = kLatencyNs}}};
  };
  const auto shaped_low = *LinkShaper::Create(network.carrier(0), shape(1), clock);
  const auto shaped_high = *LinkShaper::Create(network.carrier(1), shape(0), clock);
  shaped_low->Attach(&low);
  shaped_high->Attach(&high);
  low.carrier = shaped_low.get();
  high.carrier = shaped_high.get();
  network.Attach(0, shaped_low.get());
  network.Attach(1, shaped_high.get());
  network.Connect(clock.NowNs());
  while (high.took_ns.size() < 100) {
    const int64_t next_ns = std::max(network.Pump(clock.NowNs()), clock.NowNs() + 1);
    const bool sleeps = next_ns - clock.NowNs() > 200 * kUs;
    clock.SleepUntilNs(next_ns + (sleeps ? 60 * kUs : 0));  // who sleeps wakes up late
  }
  for (const Stopwatch* end : {&low, &high}) {
    for (size_t i = 10; i < end->took_ns.size(); ++i) {
      CHECK(end->took_ns[i] > kLatencyNs - 40 * kUs);
      CHECK(end->took_ns[i] < kLatencyNs + 40 * kUs);
    }
  }
}

}  // namespace
}  // namespace geopipe
