// The link shaper in its place, between UCX and the streams of two workers on the loopback device.
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "runtime/transport/ucx/ucx_transport.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int64_t kWords = 250'000;  // 1 MB: 80 ms at 12.5 MB/s
constexpr ChannelId kForward{.kind = MessageKind::kActivation, .boundary = 0, .from_rank = 0, .to_rank = 1};

int64_t Soon() { return Clock::Real().NowNs() + 60 * kSecond; }

struct Sent {
  int64_t ready_ns = 0;
  int64_t arrived_ns = 0;  // as the receiver is told
  int64_t received_ns = 0;
  int64_t acknowledged_ns = 0;  // as the sender is told
};

// Sends a message of kWords words that was ready a moment ago.
Sent SendOne(const std::vector<PeerShape>& shapes, bool keeps_time) {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  std::array<Allocator, 2> allocators{Allocator(1 << 30), Allocator(1 << 30)};
  std::array<std::unique_ptr<UcxTransport>, 2> ends;
  std::vector<UcxPeer> peers;
  for (int32_t rank = 0; rank < 2; ++rank) {
    UcxTransportOptions options;
    options.rank = rank;
    options.allocator = &allocators[static_cast<size_t>(rank)];
    options.channels = {{.id = kForward, .slot_bytes = 4 * kWords, .slots = 1}};
    LinkShaperOptions shaper{.shapes = {}, .keeps_time = keeps_time};
    for (const PeerShape& shape : shapes) {
      if (shape.peer_rank != rank) {
        shaper.shapes.push_back(shape);
      }
    }
    options.layer = [shaper](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
      return LinkShaper::Create(below, shaper);
    };
    auto opened = UcxTransport::Create(std::move(options));
    REQUIRE(opened.ok());
    ends[static_cast<size_t>(rank)] = *std::move(opened);
    peers.push_back({.rank = rank, .address = ends[static_cast<size_t>(rank)]->address()});
  }
  auto other = std::async(std::launch::async, [&] { return ends[1]->Connect(peers, "secret", Soon()); });
  REQUIRE(ends[0]->Connect(peers, "secret", Soon()).ok());
  REQUIRE(other.get().ok());
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 200 * kMs);  // the shapers have found each other
  auto payload = Tensor::Zeros(allocators[0], MemoryCategory::kTransport, DType::kInt32, {kWords});
  REQUIRE(payload.ok());
  Sent sent{.ready_ns = Clock::Real().NowNs() - 2 * kMs};
  REQUIRE(ends[0]->Send(kForward, {}, {.value = *std::move(payload), .ready = Completion::At(sent.ready_ns)}).ok());
  const auto message = ends[1]->Receive(kForward, {}, Soon());
  sent.received_ns = Clock::Real().NowNs();
  REQUIRE(message.ok());
  sent.arrived_ns = message->ready_ns();
  const auto acknowledged_ns = ends[0]->WaitAcknowledged(kForward, {}, Soon());
  REQUIRE(acknowledged_ns.ok());
  sent.acknowledged_ns = *acknowledged_ns;
  return sent;
}

TEST_CASE("a shaped link takes its time, both ways, and tells exactly how long") {
  const PeerShape forward{.peer_rank = 1, .latency_ns = 30 * kMs, .bandwidth_bytes_per_s = 12.5e6};
  PeerShape back = forward;
  back.peer_rank = 0;
  const Sent sent = SendOne({forward, back}, false);
  INFO("arrived after " << sent.arrived_ns - sent.ready_ns << " ns, received after "
                        << sent.received_ns - sent.ready_ns);
  // Never sooner; how much later is measured in tests/bench.
  CHECK(sent.received_ns - sent.ready_ns >= 110 * kMs);
  // Reported times leave out how late a thread woke, unless the machine stood still.
  const bool stalled = sent.received_ns - sent.ready_ns > 200 * kMs;
  CHECK((stalled || std::abs(sent.arrived_ns - sent.ready_ns - 110 * kMs) < kMs / 2));
  CHECK((stalled || std::abs(sent.acknowledged_ns - sent.arrived_ns - 30 * kMs) < kMs / 2));
}

TEST_CASE("inside a host, what devices whose time is kept have made is told as of then") {
  const Sent kept = SendOne({}, true);
  const bool stalled = kept.received_ns - kept.ready_ns > 90 * kMs;
  CHECK((stalled || kept.arrived_ns == kept.ready_ns));
  CHECK((stalled || kept.acknowledged_ns == kept.ready_ns));
  const Sent plain = SendOne({}, false);
  CHECK(plain.arrived_ns > plain.ready_ns + 2 * kMs);
  CHECK(plain.arrived_ns <= plain.received_ns);
}

}  // namespace
}  // namespace geopipe
