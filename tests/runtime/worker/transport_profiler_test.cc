#include "runtime/worker/transport_profiler.h"

#include <catch2/catch.hpp>
#include <memory>
#include <utility>

namespace geopipe {
namespace {

TEST_CASE("what a message costs is measured between two transports of this process") {
  int opened = 0;
  const OpenTransport open = [&](UcxTransportOptions options) {
    ++opened;
    return UcxTransport::Create(std::move(options));
  };
  const absl::StatusOr<MessageCost> cost = ProfileTransport(1'000'001, open, Clock::Real());
  INFO(cost.status().ToString());
  REQUIRE(cost.ok());
  CHECK(opened == 2);
  CHECK(cost->bytes == 1'000'000);
  CHECK(cost->fixed_ns > 0);
  CHECK(cost->whole_ns > 0);
  // Copies and checksums of a megabyte: far below a second on anything.
  CHECK(cost->whole_ns < 1'000'000'000);
}

TEST_CASE("a transport that does not open is the error") {
  const OpenTransport open = [](const UcxTransportOptions&) -> absl::StatusOr<std::unique_ptr<UcxTransport>> {
    return absl::UnavailableError("no device");
  };
  CHECK(ProfileTransport(8, open, Clock::Real()).status() == absl::UnavailableError("no device"));
}

}  // namespace
}  // namespace geopipe
