// A probe over UCX: both ends in this process, on the loopback device.
#include "runtime/transport/probe/ucx_link_probe.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "tests/support/durations.h"

namespace geopipe {
namespace {

// The way from one end to the other, as a rehearsed link.
MakeFrameLayer Shaped(LinkProbe::Role role, int64_t latency_ns = 10 * kMs) {
  const bool initiates = role == LinkProbe::Role::kInitiator;
  const PeerShape shape{.peer_rank = initiates ? UcxLinkProbe::kResponderRank : UcxLinkProbe::kInitiatorRank,
                        .latency_ns = latency_ns,
                        .bandwidth_bytes_per_s = 12.5e6};
  return [shape](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
    return LinkShaper::Create(below, {.shapes = {shape}});
  };
}

std::unique_ptr<UcxLinkProbe> OpenEnd(LinkProbe::Role role, MakeFrameLayer layer = nullptr) {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  auto probe = UcxLinkProbe::Open({.role = role, .probe = 7, .layer = std::move(layer), .measurement = {}});
  REQUIRE(probe.ok());
  return *std::move(probe);
}

TEST_CASE("two ends measure the link that is shaped between them", "[ucx]") {
  const auto responder = OpenEnd(LinkProbe::Role::kResponder, Shaped(LinkProbe::Role::kResponder));
  const auto initiator = OpenEnd(LinkProbe::Role::kInitiator, Shaped(LinkProbe::Role::kInitiator));
  const int64_t deadline_ns = Clock::Real().NowNs() + 20 * kSecond;
  absl::StatusOr<LinkProbeResult> served;
  std::thread serving([&] { served = responder->Run("", "secret", deadline_ns); });
  const auto result = initiator->Run(responder->address(), "secret", deadline_ns);
  responder->Cancel(absl::CancelledError("the test is over"));
  serving.join();
  INFO(result.status().ToString());
  REQUIRE(result.ok());
  // The bars are the bench's; here the machine may be busy with anything.
  CHECK(result->latency_ns >= 9 * kMs);
  CHECK(result->latency_ns < 15 * kMs);
  CHECK(result->round_trips >= 7);
  CHECK(result->outbound.median == Approx(12.5e6).epsilon(0.3));
  CHECK(result->inbound.median == Approx(12.5e6).epsilon(0.3));
}

TEST_CASE("an end with another secret is not served, and says why", "[ucx]") {
  const auto responder = OpenEnd(LinkProbe::Role::kResponder);
  const auto initiator = OpenEnd(LinkProbe::Role::kInitiator);
  const int64_t now_ns = Clock::Real().NowNs();
  absl::StatusOr<LinkProbeResult> served;
  std::thread serving([&] { served = responder->Run("", "secret", now_ns + 10 * kSecond); });
  const auto result = initiator->Run(responder->address(), "another", now_ns + 500 * kMs);
  responder->Cancel(absl::CancelledError("the test is over"));
  serving.join();
  CHECK(served.status().message() == "the test is over");
  CHECK(result.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(result.status().message().find("the other end was not reached in time: ") == 0);
}

TEST_CASE("a layer that cannot be made is an error", "[ucx]") {
  const auto role = LinkProbe::Role::kInitiator;
  CHECK(UcxLinkProbe::Open({.role = role, .layer = Shaped(role, -1), .measurement = {}}).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace geopipe
