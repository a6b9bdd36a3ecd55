// LinkProbe over the link shaper and a loopback carrier on a fake clock: what was shaped is what is measured.
#include "runtime/transport/probe/link_probe.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "runtime/rehearsal/link/link_shaper.h"
#include "tests/support/durations.h"
#include "tests/support/fake_clock.h"
#include "tests/support/loopback_frame.h"

namespace geopipe {
namespace {

constexpr int64_t kS = 1000 * kMs;
constexpr int64_t kMaxPayload = 64 * 1024;

// One end: what the driver is over UCX.
class End final : public FrameSink {
 public:
  End(LinkProbe::Role role, const LinkProbeOptions& options, const Clock& clock)
      : probe(role, kMaxPayload, options),
        peer_(role == LinkProbe::Role::kInitiator ? 1 : 0),
        clock_(clock),
        payload_(kMaxPayload) {}

  void OnFrame(PeerId /*from*/, const Frame& frame) override {
    if (!deaf) {
      probe.OnFrame(frame.ready_ns + clock_offset_ns, frame.header, static_cast<int64_t>(frame.payload.size()));
    }
  }
  void OnPeerUp(PeerId /*peer*/) override { probe.OnUp(clock_.NowNs() + clock_offset_ns); }
  void OnPeerDown(PeerId /*peer*/, const absl::Status& why) override { probe.OnDown(why); }
  int64_t OnProgress(int64_t /*now_ns*/) override {
    while (carrier->Writable(peer_)) {
      const auto frame = probe.Next(clock_.NowNs() + clock_offset_ns);
      if (!frame.has_value()) {
        break;
      }
      payload_bytes += frame->payload_bytes;
      const std::span<const std::byte> payload = std::span(payload_).first(static_cast<size_t>(frame->payload_bytes));
      carrier->Send(peer_, {frame->header, payload, clock_.NowNs()}, [] {});
    }
    const int64_t next_ns = probe.NextTimeNs();
    return next_ns == kNeverNs ? kNeverNs : next_ns - clock_offset_ns;
  }

  LinkProbe probe;
  FrameCarrier* carrier = nullptr;
  int64_t clock_offset_ns = 0;
  int64_t payload_bytes = 0;
  bool deaf = false;

 private:
  const PeerId peer_;
  const Clock& clock_;
  std::vector<std::byte> payload_;
};

struct World {
  World(int64_t latency_ns, double outbound_bytes_per_s, double inbound_bytes_per_s, LinkProbeOptions options = {})
      : initiator(LinkProbe::Role::kInitiator, options, clock), responder(LinkProbe::Role::kResponder, options, clock) {
    clock.AdvanceNs(kS);
    network.set_faults({.latency_ns = 0});
    const auto shape = [&](PeerId peer, double bandwidth) {
      return LinkShaperOptions{
          .shapes = {{.peer_rank = peer, .latency_ns = latency_ns, .bandwidth_bytes_per_s = bandwidth}}};
    };
    shaped_initiator = *LinkShaper::Create(network.carrier(0), shape(1, outbound_bytes_per_s), clock);
    shaped_responder = *LinkShaper::Create(network.carrier(1), shape(0, inbound_bytes_per_s), clock);
    shaped_initiator->Attach(&initiator);
    shaped_responder->Attach(&responder);
    initiator.carrier = shaped_initiator.get();
    responder.carrier = shaped_responder.get();
    network.Attach(0, shaped_initiator.get());
    network.Attach(1, shaped_responder.get());
    network.Connect(clock.NowNs());
  }

  // Runs to the end of the probe, or for ten seconds. Time advances to whatever is due next, and `late_ns` farther.
  void Run(const std::function<int64_t()>& late_ns = [] { return 0; }) {
    const int64_t end_ns = clock.NowNs() + 10 * kS;
    began_ns = clock.NowNs();
    while (!initiator.probe.done() && clock.NowNs() < end_ns) {
      const int64_t next_ns = network.Pump(clock.NowNs());
      REQUIRE(++pumps < 2'000'000);
      if (initiator.probe.done()) {
        return;
      }
      clock.SleepUntilNs(std::min(end_ns, std::max(next_ns, clock.NowNs() + 1) + late_ns()));
    }
  }

  FakeClock clock;
  LoopbackNetwork network{0, 1, kMaxPayload, 1};
  End initiator;
  End responder;
  std::unique_ptr<LinkShaper> shaped_initiator;
  std::unique_ptr<LinkShaper> shaped_responder;
  int64_t began_ns = 0;
  int64_t pumps = 0;
};

TEST_CASE("what the shaper was told is what the probe finds") {
  const int64_t latency_ns = GENERATE(1 * kMs, 5 * kMs, 20 * kMs, 100 * kMs);
  const double bandwidth = GENERATE(1.25e6, 12.5e6, 125e6, 250e6);
  CAPTURE(latency_ns, bandwidth);
  World world(latency_ns, bandwidth, bandwidth);
  world.responder.clock_offset_ns = 1'234'567'890'123;  // no clock is the other's
  world.Run();
  REQUIRE(world.initiator.probe.done());
  const auto& result = world.initiator.probe.result();
  REQUIRE(result.ok());
  CHECK(static_cast<double>(result->latency_ns) == Approx(latency_ns).epsilon(0.005));
  CHECK(static_cast<double>(result->latency_median_ns) == Approx(latency_ns).epsilon(0.005));
  CHECK(result->latency_spread_ns < latency_ns / 100);
  CHECK(result->round_trips == 16);
  CHECK(result->outbound.median == Approx(bandwidth).epsilon(0.01));
  CHECK(result->inbound.median == Approx(bandwidth).epsilon(0.01));
  CHECK(result->outbound.samples == 3);
  CHECK(result->inbound.samples == 3);
  CHECK(world.clock.NowNs() - world.began_ns < 4 * kS);
}

TEST_CASE("a probe of a near link is over soon, and a slow link gets few bytes") {
  World near(20 * kMs, 125e6, 125e6);
  near.Run();
  REQUIRE(near.initiator.probe.done());
  CHECK(near.clock.NowNs() - near.began_ns < 700 * kMs);

  World slow(20 * kMs, 1.25e6, 1.25e6);
  slow.Run();
  REQUIRE(slow.initiator.probe.result().ok());
  CHECK(slow.initiator.payload_bytes <= 256 * 1024);
  CHECK(slow.responder.payload_bytes <= 256 * 1024);
}

TEST_CASE("each direction has a bandwidth of its own") {
  World world(10 * kMs, 125e6, 12.5e6);
  world.Run();
  REQUIRE(world.initiator.probe.result().ok());
  CHECK(world.initiator.probe.result()->outbound.median == Approx(125e6).epsilon(0.01));
  CHECK(world.initiator.probe.result()->inbound.median == Approx(12.5e6).epsilon(0.01));
}

TEST_CASE("wake-ups that come late move the least latency little and the bandwidth less") {
  World world(5 * kMs, 125e6, 125e6);
  SplitMix64 random(7);
  // Mostly 20 µs, and one in twenty 2 ms.
  world.Run([&] { return random.Uniform() < 0.05 ? 2 * kMs : static_cast<int64_t>(random.Uniform() * 40'000); });
  REQUIRE(world.initiator.probe.result().ok());
  const LinkProbeResult result = *world.initiator.probe.result();
  CHECK(static_cast<double>(result.latency_ns) == Approx(5.0 * kMs).epsilon(0.02));
  CHECK(result.outbound.median == Approx(125e6).epsilon(0.04));
  CHECK(result.inbound.median == Approx(125e6).epsilon(0.04));
}

TEST_CASE("late arrivals show in the spread, not in the least latency") {
  World world(10 * kMs, 12.5e6, 12.5e6, {.pings = 64});
  SplitMix64 random(9);
  world.Run([&] { return static_cast<int64_t>(random.Uniform() * kMs); });
  INFO(world.initiator.probe.result().status().ToString());
  REQUIRE(world.initiator.probe.result().ok());
  const LinkProbeResult result = *world.initiator.probe.result();
  CHECK(static_cast<double>(result.latency_ns) == Approx(10.0 * kMs).epsilon(0.1));
  CHECK(result.latency_median_ns > 10'500'000);
  CHECK(result.latency_spread_ns > kMs / 10);
}

TEST_CASE("lost frames cost a little time and no truth") {
  const uint64_t drop = GENERATE(1, 3, 5);
  CAPTURE(drop);
  World world(20 * kMs, 12.5e6, 12.5e6);
  world.network.set_faults({.drop = static_cast<double>(drop) / 100, .latency_ns = 0});
  world.Run();
  REQUIRE(world.initiator.probe.done());
  const auto& result = world.initiator.probe.result();
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  CHECK(static_cast<double>(result->latency_ns) == Approx(20.0 * kMs).epsilon(0.01));
  CHECK(result->outbound.median == Approx(12.5e6).epsilon(0.02));
  CHECK(result->inbound.median == Approx(12.5e6).epsilon(0.02));
}

TEST_CASE("a peer that is silent or gone ends the probe within its patience") {
  World silent(20 * kMs, 12.5e6, 12.5e6, {.silence_ns = 2 * kS});
  silent.responder.deaf = true;
  silent.Run();
  REQUIRE(silent.initiator.probe.done());
  CHECK(silent.initiator.probe.result().status().message() == "0 of 18 pings were answered within 2.0 s");

  World gone(20 * kMs, 12.5e6, 12.5e6);
  gone.network.Pump(gone.clock.NowNs());
  gone.network.Disconnect(gone.clock.NowNs());
  CHECK(gone.initiator.probe.result().status().code() == absl::StatusCode::kUnavailable);
  CHECK(gone.responder.probe.done());

  World half(20 * kMs, 12.5e6, 12.5e6);  // answers pings, and then nothing more
  while (half.initiator.payload_bytes == 0) {
    half.clock.SleepUntilNs(std::max(half.network.Pump(half.clock.NowNs()), half.clock.NowNs() + 1));
  }
  half.responder.deaf = true;
  half.Run();
  REQUIRE(half.initiator.probe.done());
  CHECK(half.initiator.probe.result().status().code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("bytes that are no frame of a probe are passed over") {
  LinkProbe probe(LinkProbe::Role::kResponder, kMaxPayload, {});
  probe.OnUp(0);
  SplitMix64 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> header(i % 3 == 0 ? random.Next() % 64 : LinkProbeFrame::kHeaderBytes);
    for (std::byte& byte : header) {
      byte = static_cast<std::byte>(random.Next());
    }
    if (header.size() >= 4 && i % 2 == 0) {  // the beginning of a true one
      const std::byte begin[] = {std::byte{0x4C}, std::byte{0x50}, std::byte{1}, static_cast<std::byte>(i % 7)};
      std::copy(std::begin(begin), std::end(begin), header.begin());
    }
    probe.OnFrame(i, header, static_cast<int64_t>(random.Next() % kMaxPayload));
    while (probe.Next(i).has_value()) {
    }
  }
  CHECK_FALSE(probe.done());
}

}  // namespace
}  // namespace geopipe
