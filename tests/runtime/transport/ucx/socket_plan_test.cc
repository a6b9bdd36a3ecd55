#include "runtime/transport/ucx/socket_plan.h"

#include <catch2/catch.hpp>

#include "tests/support/durations.h"

namespace geopipe {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kPlenty = int64_t{1} << 40;

// Linux as it comes.
constexpr SocketLimits kStock = {.send_max_bytes = 212'992,
                                 .receive_max_bytes = 212'992,
                                 .send_auto_max_bytes = 4 * kMiB,
                                 .receive_auto_max_bytes = 6 * kMiB};
// deploy/sysctl.d/geopipe.conf.
constexpr SocketLimits kTuned = {.send_max_bytes = 64 * kMiB,
                                 .receive_max_bytes = 64 * kMiB,
                                 .send_auto_max_bytes = 64 * kMiB,
                                 .receive_auto_max_bytes = 64 * kMiB};

TEST_CASE("without a known link everything is left to the kernel") {
  for (const SocketPlan& plan : {PlanSockets(0, 125e6, kPlenty, kStock), PlanSockets(30 * kMs, 0, kPlenty, kStock)}) {
    CHECK(plan.connections == 1);
    CHECK(plan.send_buffer_bytes == 0);
    CHECK(plan.receive_buffer_bytes == 0);
  }
}

TEST_CASE("one connection fills a link whose product fits the kernel's limits") {
  // 7.5 MB, and a quarter more.
  const SocketPlan plan = PlanSockets(30 * kMs, 125e6, kPlenty, kTuned);
  CHECK(plan.connections == 1);
  CHECK(plan.send_buffer_bytes == 0);             // the kernel goes to 32 MiB by itself
  CHECK(plan.receive_buffer_bytes == 9'375'000);  // a window from the first packet on
  CHECK(plan.window_bytes == 9'375'000);
}

TEST_CASE("where the limits stop a window, connections make up for it") {
  const SocketPlan plan = PlanSockets(30 * kMs, 125e6, kPlenty, kStock);
  // Asking would only get 208 KiB; by itself the kernel goes to half of 4 MiB.
  CHECK(plan.send_buffer_bytes == 0);
  CHECK(plan.receive_buffer_bytes == 0);
  CHECK(plan.window_bytes == 2 * kMiB);
  CHECK(plan.connections == 5);

  SocketLimits limits = kStock;
  limits.send_max_bytes = 4 * kMiB;
  limits.receive_max_bytes = 4 * kMiB;
  const SocketPlan asked = PlanSockets(30 * kMs, 125e6, kPlenty, limits);
  CHECK(asked.send_buffer_bytes == 4 * kMiB);
  CHECK(asked.receive_buffer_bytes == 4 * kMiB);
  CHECK(asked.connections == 3);

  CHECK(PlanSockets(100 * kMs, 12.5e9, kPlenty, kStock).connections == kMaxConnectionsOfPath);
}

TEST_CASE("what the channels cannot have on its way needs no window") {
  CHECK(PlanSockets(30 * kMs, 125e6, 2 * kMiB, kStock).connections == 1);
  CHECK(PlanSockets(30 * kMs, 125e6, 4 * kMiB, kStock).connections == 2);
}

TEST_CASE("this host's limits can be read") {
  const SocketLimits limits = ReadSocketLimits();
  CHECK(limits.send_max_bytes > 0);
  CHECK(limits.receive_max_bytes > 0);
  CHECK(limits.send_auto_max_bytes > 0);
  CHECK(limits.receive_auto_max_bytes > 0);
}

}  // namespace
}  // namespace geopipe
