#include "agent/coordinator_link.h"

#include <catch2/catch.hpp>

namespace geopipe::agent {
namespace {

// Dials and is welcomed by the coordinator with this incarnation.
void Connect(CoordinatorLink& link, int64_t now_ns, uint64_t incarnation, uint64_t orders_before) {
  Effects effects;
  link.OnTime(now_ns, now_ns, effects);
  REQUIRE(std::holds_alternative<Dial>(effects.back()));
  CoordinatorMessage welcome{std::get<Dial>(effects.back()).connection, {}};
  welcome.message.mutable_welcome()->set_coordinator_incarnation(incarnation);
  welcome.message.mutable_welcome()->set_orders_before(orders_before);
  link.OnMessage(now_ns, welcome, effects);
  REQUIRE(link.registered());
}

// True when the link hands the order out; it is then taken.
bool Takes(CoordinatorLink& link, ConnectionId connection, uint64_t sequence) {
  CoordinatorMessage message{connection, {}};
  message.message.mutable_stop_workers()->set_job("tiny");
  message.message.set_sequence(sequence);
  Effects effects;
  const std::optional<v1::ConnectResponse> order = link.OnMessage(0, message, effects);
  if (order.has_value()) {
    link.Took(*order);
  }
  return order.has_value();
}

TEST_CASE("orders begin after those of the node's other agent processes") {
  CoordinatorLink link(
      {.incarnation = 1}, [] { return v1::AgentHello(); }, [](const v1::NodeReport&) {});
  Connect(link, 0, 7, 3);
  CHECK(Takes(link, 1, 4));
  CHECK(Takes(link, 1, 5));
  CHECK_FALSE(Takes(link, 1, 5));

  // The coordinator has heard another process of the node since, and has given it orders 6 and 7.
  constexpr int64_t kLaterNs = 10'000'000'000;
  Effects effects;
  link.OnClosed(0, {1, absl::UnavailableError("cut")}, effects);
  Connect(link, kLaterNs, 7, 7);
  CHECK(Takes(link, 2, 8));

  // Another coordinator counts anew.
  link.OnClosed(kLaterNs, {2, absl::UnavailableError("cut")}, effects);
  Connect(link, 2 * kLaterNs, 8, 0);
  CHECK(Takes(link, 3, 1));
}

}  // namespace
}  // namespace geopipe::agent
