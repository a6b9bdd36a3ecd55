// Metrics that a worker exposes to Prometheus: the figures that its iterations report, counted as they end, and the
// resources of its rank, looked up by each scrape.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/metrics.h"
#include "runtime/executor/executor.h"
#include "runtime/worker/rank_job.h"

namespace geopipe {

class WorkerMetrics {
 public:
  // The registry outlives the metrics.
  explicit WorkerMetrics(MetricRegistry& registry);

  // Counts an iteration; on the executor's thread, waits for no scrape.
  void OnIteration(int32_t rank, const IterationStats& stats);
  // Looks up the usage; on the scraping thread, one at a time.
  void Refresh(const std::optional<RankUsage>& usage);

 private:
  struct RankSeries {
    Counter iterations;
    Histogram seconds;
    Counter busy;
    Gauge bubble;
  };
  // A counter that follows a total, which restarts at zero with a new epoch.
  struct Followed {
    Counter counter;
    double total = 0;
  };

  void Follow(const MetricSpec& spec, const LabelValues& labels, double total);
  void ShowTransport(const RankUsage& usage);

  MetricRegistry& registry_;
  std::map<int32_t, RankSeries> ranks_;                          // executor's thread
  std::map<std::pair<int32_t, ActionKind>, Histogram> actions_;  // by stage; executor's thread
  std::map<std::string, Followed> followed_;                     // scraping thread; by name and labels
};

}  // namespace geopipe
