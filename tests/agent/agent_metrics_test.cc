#include "agent/agent_metrics.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/agent/agent_harness.h"
#include "tests/support/scrape.h"

namespace geopipe::agent {
namespace {

TEST_CASE("an agent's metrics follow what its core is told") {
  MetricRegistry registry(MetricLabels{{"site", "east"}});
  AgentMetrics metrics(registry, TestConfig());
  std::string text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_build_info", {{"program", "geopipe-agent"}, {"site", "east"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_coordinator_connected") == 0);
  CHECK(SeriesValue(text, "geopipe_workers") == 0);
  CHECK(SeriesValue(text, "geopipe_link_latency_seconds", {{"from_site", "east"}, {"to_site", "west"}}) ==
        Approx(static_cast<double>(TestConfig().links[0].latency_ns) * 1e-9));
  CHECK(SeriesValue(text, "geopipe_link_bandwidth_bytes_per_second") == TestConfig().links[0].bandwidth_bytes_per_s);

  metrics.OnEvent(Welcome(1));
  metrics.SetWorkers(2);
  metrics.OnEvent(HeartbeatFrom(5, TestWorker(1), 3));
  metrics.OnEvent(HeartbeatFrom(5, TestWorker(1), 4));
  metrics.OnEvent(HeartbeatFrom(6, TestWorker(99), 4));  // no such device
  metrics.OnEvent(IterationFrom(5, TestWorker(1), 4));
  text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_coordinator_connected") == 1);
  CHECK(SeriesValue(text, "geopipe_workers") == 2);
  CHECK(SeriesValue(text, "geopipe_worker_heartbeats_total") == 2);

  metrics.OnEvent(CoordinatorClosed{1, absl::UnavailableError("gone")});
  metrics.OnEvent(Welcome(3));
  metrics.OnEvent(CoordinatorClosed{2, absl::UnavailableError("late news")});
  metrics.OnEvent(WorkerExited{.worker = {0, 7}, .pid = 100, .exit_code = 0, .signal = 9, .last_words = ""});
  metrics.OnEvent(WorkerExited{.worker = {1, 7}, .pid = 101, .exit_code = 1, .signal = 0, .last_words = ""});
  metrics.SetWorkers(0);
  text = registry.Text();
  CHECK(SeriesValue(text, "geopipe_coordinator_connected") == 1);
  CHECK(SeriesValue(text, "geopipe_coordinator_connections_total") == 2);
  CHECK(SeriesValue(text, "geopipe_workers") == 0);
  CHECK(SeriesValue(text, "geopipe_worker_exits_total", {{"outcome", "signal"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_worker_exits_total", {{"outcome", "error"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_worker_exits_total", {{"outcome", "ok"}}) == 0);
  metrics.OnEvent(CoordinatorClosed{3, absl::UnavailableError("gone")});
  CHECK(SeriesValue(registry.Text(), "geopipe_coordinator_connected") == 0);
}

}  // namespace
}  // namespace geopipe::agent
