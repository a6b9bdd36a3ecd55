#include "runtime/worker/worker_metrics.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/runtime/worker/fake_cluster.h"
#include "tests/support/scrape.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

constexpr int32_t kStages = 2;

struct Reported {
  int64_t iterations = 0;
  double duration_s = 0;
  double busy_s = 0;
  double loss = 0;
  int64_t forwards = 0;
  double forward_s = 0;
};

Reported Sum(const std::vector<v1::WorkerReport>& reports) {
  Reported sum;
  for (const v1::WorkerReport& report : reports) {
    if (!report.has_iteration()) {
      continue;
    }
    ++sum.iterations;
    sum.duration_s += static_cast<double>(report.iteration().duration_ns()) * 1e-9;
    sum.busy_s += static_cast<double>(report.iteration().busy_ns()) * 1e-9;
    sum.loss = report.iteration().loss();
    for (const v1::ActionTiming& action : report.iteration().actions()) {
      // "0F3", and not "0SEND_F3".
      if (action.action().find('F') != std::string::npos && action.action().find('_') == std::string::npos) {
        ++sum.forwards;
        sum.forward_s += static_cast<double>(action.end_ns() - action.start_ns()) * 1e-9;
      }
    }
  }
  return sum;
}

// The peaks that iterations told last; an iteration that tells no actions must not repeat the peaks before it.
v1::MemoryPeaks LastPeaks(const std::vector<v1::WorkerReport>& reports) {
  v1::MemoryPeaks last;
  for (const v1::WorkerReport& report : reports) {
    if (report.has_iteration() && report.iteration().has_peaks()) {
      const bool repeats = last.SerializeAsString() == report.iteration().peaks().SerializeAsString();
      CHECK((!repeats || report.iteration().actions_size() > 0));
      last = report.iteration().peaks();
    }
  }
  return last;
}

TEST_CASE("a worker's metrics agree with what it reports") {
  const TempDir dir;
  const JobSpec job = SmallJob(dir.Write("text", std::string(4000, 'x')));
  FakeCluster cluster(kStages);
  CHECK(cluster.MetricsText(0).find("geopipe_memory_bytes") == std::string::npos);  // nothing is prepared
  for (int32_t stage = 0; stage < kStages; ++stage) {
    cluster.Command(stage, PrepareCommandFor(job, {}, kStages, stage));
  }
  for (int32_t stage = 0; stage < kStages; ++stage) {
    cluster.Await(stage, [](const v1::WorkerReport& report) { return report.has_prepared(); });
  }
  const std::string prepared = cluster.MetricsText(0);
  CHECK(SeriesValue(prepared, "geopipe_memory_bytes", {{"category", "weights"}}).value_or(0) > 0);
  CHECK_FALSE(SeriesValue(prepared, "geopipe_rank_iterations_total").has_value());
  for (int32_t stage = 0; stage < kStages; ++stage) {
    cluster.Command(stage, CommitCommandFor(kStages, job.training.iterations));
  }
  for (int32_t stage = 0; stage < kStages; ++stage) {
    const v1::FinishedReport finished =
        cluster.Await(stage, [](const v1::WorkerReport& report) { return report.has_finished(); }).finished();
    const Reported reported = Sum(cluster.reports(stage));
    const std::string text = cluster.MetricsText(stage);
    INFO(text);
    const std::vector<std::pair<std::string, std::string>> labels = {{"training_job", "small"},
                                                                     {"rank", std::to_string(stage)}};
    REQUIRE(reported.iterations == job.training.iterations);
    CHECK(SeriesValue(text, "geopipe_rank_iterations_total", labels) == reported.iterations);
    CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_count", labels) == reported.iterations);
    CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_sum", labels) == Approx(reported.duration_s));
    CHECK(SeriesValue(text, "geopipe_rank_busy_seconds_total", labels) == Approx(reported.busy_s));
    const std::vector<std::pair<std::string, std::string>> forward = {{"stage", std::to_string(stage)},
                                                                      {"action", "forward"}};
    CHECK(SeriesValue(text, "geopipe_stage_action_seconds_count", forward) == reported.forwards);
    CHECK(SeriesValue(text, "geopipe_stage_action_seconds_sum", forward) == Approx(reported.forward_s));
    CHECK(SeriesValue(text, "geopipe_rank_loss", labels).has_value() == (stage == kStages - 1));
    if (stage == kStages - 1) {
      CHECK(SeriesValue(text, "geopipe_rank_loss", labels) == Approx(reported.loss).epsilon(1e-14));  // 16 digits
    }
    const v1::MemoryPeaks& peaks = finished.peaks();
    CHECK(LastPeaks(cluster.reports(stage)).SerializeAsString() == peaks.SerializeAsString());
    const std::pair<std::string, int64_t> told[] = {
        {"weights", peaks.weight_bytes()},      {"gradients", peaks.gradient_bytes()},
        {"optimizer", peaks.optimizer_bytes()}, {"activations", peaks.activation_bytes()},
        {"workspace", peaks.workspace_bytes()}, {"transport", peaks.transport_bytes()},
        {"recovery", peaks.recovery_bytes()}};
    for (const auto& [category, bytes] : told) {
      CHECK(SeriesValue(text, "geopipe_memory_peak_bytes", {{"category", category}}) == static_cast<double>(bytes));
    }
  }
}

TEST_CASE("totals of the transport are followed, from zero again with a new epoch") {
  MetricRegistry registry(MetricLabels{});
  WorkerMetrics worker(registry);
  RankUsage usage;
  usage.rank = 1;
  usage.sites = {"north", "east"};
  usage.memory_limit_bytes = 1 << 20;
  const auto scrape = [&](int64_t bytes, int64_t frames) {
    usage.transport.frames_resent = frames;
    usage.transport.peers = {{.rank = 0,
                              .bytes_sent = bytes,
                              .bytes_received = 2 * bytes,
                              .corrupt_frames = frames,
                              .round_trip_ns = 0,
                              .between_stages = {{MessageKind::kGradient, bytes / 10, 5 * bytes}}}};
    worker.Refresh(usage);
    return registry.Text();
  };
  scrape(100, 1);
  std::string text = scrape(150, 1);
  CHECK(SeriesValue(text, "geopipe_transport_frames_resent_total") == 1);
  CHECK(SeriesValue(text, "geopipe_memory_limit_bytes") == 1 << 20);
  CHECK(SeriesValue(text, "geopipe_link_corrupt_frames_total",
                    {{"from_site", "north"}, {"to_site", "east"}, {"from_rank", "0"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_link_sent_bytes_total",
                    {{"from_site", "east"}, {"to_site", "north"}, {"to_rank", "0"}}) == 150);
  CHECK(SeriesValue(text, "geopipe_link_received_bytes_total",
                    {{"from_site", "north"}, {"to_site", "east"}, {"from_rank", "0"}}) == 300);
  const std::vector<std::pair<std::string, std::string>> gradients{
      {"from_site", "east"}, {"to_site", "north"}, {"to_rank", "0"}, {"message", "gradient"}};
  CHECK(SeriesValue(text, "geopipe_boundary_messages_total", gradients) == 15);
  CHECK(SeriesValue(text, "geopipe_boundary_bytes_total", gradients) == 750);
  CHECK_FALSE(SeriesValue(text, "geopipe_link_round_trip_seconds").has_value());
  text = scrape(20, 0);
  CHECK(SeriesValue(text, "geopipe_link_sent_bytes_total") == 170);
  usage.transport.peers[0].round_trip_ns = 40'000'000;
  worker.Refresh(usage);
  CHECK(SeriesValue(registry.Text(), "geopipe_link_round_trip_seconds") == Approx(0.04));
  worker.Refresh(std::nullopt);
  CHECK(SeriesValue(registry.Text(), "geopipe_link_sent_bytes_total") == 170);
}

}  // namespace
}  // namespace geopipe
