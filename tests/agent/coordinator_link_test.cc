#include "agent/coordinator_link.h"

#include <catch2/catch.hpp>
#include <limits>

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

TEST_CASE("a coordinator that refuses for another version is dialled again, one whose place is taken is not") {
  const bool is_version = GENERATE(false, true);
  constexpr int64_t kBackoffNs = 10'000'000'000;
  CoordinatorLink link(
      {.incarnation = 1, .refused_backoff_ns = kBackoffNs}, [] { return v1::AgentHello(); },
      [](const v1::NodeReport&) {});
  int64_t now_ns = 0;
  for (ConnectionId connection = 1; connection <= 3; ++connection) {
    Effects effects;
    link.OnTime(now_ns, now_ns, effects);
    REQUIRE(std::holds_alternative<Dial>(effects.back()));
    effects.clear();
    const absl::Status refusal = is_version ? absl::FailedPreconditionError("agent 1, coordinator 2")
                                            : absl::AlreadyExistsError("pid 7 holds it");
    link.OnClosed(now_ns, {connection, refusal}, effects);
    if (!is_version) {
      CHECK(link.refusal() == refusal);
      CHECK(link.next_deadline_ns() == std::numeric_limits<int64_t>::max());
      return;
    }
    CHECK(link.refusal().ok());
    REQUIRE(effects.size() == 1);
    CHECK_THAT(std::get<WriteLog>(effects[0]).text, Catch::Contains("agent 1, coordinator 2"));
    const int64_t wait_ns = link.next_deadline_ns() - now_ns;
    CHECK(wait_ns >= kBackoffNs);
    CHECK(wait_ns <= kBackoffNs + kBackoffNs / 4);
    now_ns += wait_ns;
  }
  Connect(link, now_ns, 9, 0);
}

}  // namespace
}  // namespace geopipe::agent
