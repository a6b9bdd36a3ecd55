// What a worker exposes to Prometheus: what its iterations report, counted as they end, and what its rank uses, looked
// up by each scrape.
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

  // On the executor's thread; waits for no scrape.
  void OnIteration(int32_t rank, const IterationStats& stats);
  // On the scraping thread, one at a time.
  void Refresh(const std::optional<RankUsage>& usage);

 private:
  struct RankSeries {
    Counter iterations;
    Histogram seconds;
    Counter busy;
    Gauge bubble;
  };
  // A counter that follows a total, which begins again at zero with a new epoch.
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
