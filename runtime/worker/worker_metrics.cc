#include "runtime/worker/worker_metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "runtime/base/version.h"

namespace geopipe {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// REQUIRES: IsCompute(kind).
std::string_view ActionLabel(ActionKind kind) {
  static constexpr std::array<std::string_view, 4> kLabels{"forward", "backward", "input_gradient", "weight_gradient"};
  return kLabels[static_cast<size_t>(kind)];
}

}  // namespace

WorkerMetrics::WorkerMetrics(MetricRegistry& registry) : registry_(registry) {
  registry_.GetGauge(metrics::kBuildInfo, {"geopipe-worker", std::string(Version())}).Set(1);
}

void WorkerMetrics::OnIteration(int32_t rank, const IterationStats& stats) {
  const std::string name = std::to_string(rank);
  auto found = ranks_.find(rank);
  if (found == ranks_.end()) {
    const RankSeries series{.iterations = registry_.GetCounter(metrics::kRankIterations, {name}),
                            .seconds = registry_.GetHistogram(metrics::kRankIterationSeconds, {name}),
                            .busy = registry_.GetCounter(metrics::kRankBusySeconds, {name}),
                            .bubble = registry_.GetGauge(metrics::kRankBubbleRatio, {name})};
    found = ranks_.emplace(rank, series).first;
  }
  RankSeries& series = found->second;
  for (const ActionRecord& record : stats.actions) {
    const auto [stage, kind, micro_batch] = record.action;
    if (!IsCompute(kind)) {
      continue;
    }
    auto action = actions_.find({stage, kind});
    if (action == actions_.end()) {
      const LabelValues labels{std::to_string(stage), std::string(ActionLabel(kind))};
      action =
          actions_.emplace(std::pair(stage, kind), registry_.GetHistogram(metrics::kStageActionSeconds, labels)).first;
    }
    action->second.Observe(Seconds(record.end_ns - record.start_ns));
  }
  if (stats.loss.has_value()) {
    registry_.GetGauge(metrics::kRankLoss, {name}).Set(*stats.loss);
  }
  series.seconds.Observe(Seconds(stats.duration_ns));
  series.busy.Add(Seconds(stats.busy_ns));
  if (stats.duration_ns > 0) {
    series.bubble.Set(std::max(0.0, 1 - static_cast<double>(stats.busy_ns) / static_cast<double>(stats.duration_ns)));
  }
  series.iterations.Add();
}

void WorkerMetrics::Refresh(const std::optional<RankUsage>& usage) {
  if (!usage.has_value()) {
    return;
  }
  for (int i = 0; i < kMemoryCategories; ++i) {
    const std::string category(MemoryCategoryName(static_cast<MemoryCategory>(i)));
    registry_.GetGauge(metrics::kMemory, {category}).Set(static_cast<double>(usage->memory[i].bytes));
    registry_.GetGauge(metrics::kMemoryPeak, {category}).Set(static_cast<double>(usage->memory[i].peak_bytes));
  }
  if (usage->memory_limit_bytes > 0) {
    registry_.GetGauge(metrics::kMemoryLimit).Set(static_cast<double>(usage->memory_limit_bytes));
  }
  ShowTransport(*usage);
}

void WorkerMetrics::ShowTransport(const RankUsage& usage) {
  const TransportStats& stats = usage.transport;
  Follow(metrics::kFramesSent, {}, static_cast<double>(stats.frames_sent));
  Follow(metrics::kFramesResent, {}, static_cast<double>(stats.frames_resent));
  Follow(metrics::kFramesReceived, {}, static_cast<double>(stats.frames_received));
  Follow(metrics::kFramesDuplicate, {}, static_cast<double>(stats.duplicate_frames));
  Follow(metrics::kFramesRefused, {}, static_cast<double>(stats.refused_frames));
  Follow(metrics::kReconnects, {}, static_cast<double>(stats.reconnects));
  Follow(metrics::kTransportCpu, {}, Seconds(usage.transport_cpu_ns));
  const std::string& here = usage.sites[usage.rank];
  for (const PeerTraffic& peer : stats.peers) {
    const std::string& there = usage.sites[peer.rank];
    const std::string rank = std::to_string(peer.rank);
    Follow(metrics::kLinkSentBytes, {here, there, rank}, static_cast<double>(peer.bytes_sent));
    Follow(metrics::kLinkReceivedBytes, {there, here, rank}, static_cast<double>(peer.bytes_received));
    Follow(metrics::kLinkCorruptFrames, {there, here, rank}, static_cast<double>(peer.corrupt_frames));
    for (const MessageTraffic& traffic : peer.between_stages) {
      const LabelValues labels{here, there, rank, std::string(MessageKindName(traffic.kind))};
      Follow(metrics::kBoundaryMessages, labels, static_cast<double>(traffic.messages));
      Follow(metrics::kBoundaryBytes, labels, static_cast<double>(traffic.bytes));
    }
    if (peer.round_trip_ns > 0) {
      registry_.GetGauge(metrics::kLinkRoundTrip, {here, there, rank}).Set(Seconds(peer.round_trip_ns));
    }
  }
}

void WorkerMetrics::Follow(const MetricSpec& spec, const LabelValues& labels, double total) {
  const auto [found, added] = followed_.try_emplace(fmt::format("{} {}", spec.name, fmt::join(labels, " ")),
                                                    Followed{registry_.GetCounter(spec, labels)});
  Followed& followed = found->second;
  followed.counter.Add(total >= followed.total ? total - followed.total : total);
  followed.total = total;
}

}  // namespace geopipe
