#include "coordinator/cluster/measured_links.h"

#include <algorithm>
#include <vector>

namespace geopipe {
namespace {

void Push(std::deque<v1::LinkMeasurement>& history, const v1::LinkMeasurement& measurement) {
  history.push_back(measurement);
  if (history.size() > MeasuredLinks::kKept) {
    history.pop_front();
  }
}

// The middle one; of two the better one, because what disturbs a measurement makes the link look worse.
template <class Figure>
const v1::LinkMeasurement& MiddleOf(const std::deque<v1::LinkMeasurement>& history, bool less_is_better,
                                    Figure figure) {
  std::vector<const v1::LinkMeasurement*> sorted;
  sorted.reserve(history.size());
  for (const v1::LinkMeasurement& each : history) {
    sorted.push_back(&each);
  }
  std::ranges::stable_sort(sorted, [&](const auto* a, const auto* b) { return figure(*a) < figure(*b); });
  return *sorted[less_is_better ? (sorted.size() - 1) / 2 : sorted.size() / 2];
}

}  // namespace

void MeasuredLinks::Update(History& history, int64_t now_ns, bool from_traffic) {
  v1::LinkMeasurement& value = history.now.value;
  if (!history.latencies.empty()) {
    const v1::LinkMeasurement& middle =
        MiddleOf(history.latencies, true, [](const v1::LinkMeasurement& each) { return each.latency_ns(); });
    value.set_latency_ns(middle.latency_ns());
    value.set_latency_median_ns(middle.latency_median_ns());
    value.set_latency_spread_ns(middle.latency_spread_ns());
    value.set_latency_samples(middle.latency_samples());
  }
  if (!history.bandwidths.empty()) {
    const v1::LinkMeasurement& middle = MiddleOf(
        history.bandwidths, false, [](const v1::LinkMeasurement& each) { return each.bandwidth_bytes_per_s(); });
    value.set_bandwidth_bytes_per_s(middle.bandwidth_bytes_per_s());
    value.set_bandwidth_spread_bytes_per_s(middle.bandwidth_spread_bytes_per_s());
    value.set_bandwidth_samples(middle.bandwidth_samples());
  }
  history.now.from_traffic = from_traffic;
  history.now.at_ns = now_ns;
  ++history.now.measurements;
}

void MeasuredLinks::AddProbe(int64_t now_ns, const std::string& from, const std::string& to,
                             const v1::LinkMeasurement& measurement) {
  History& history = At(from, to);
  Push(history.latencies, measurement);
  Push(history.bandwidths, measurement);
  Update(history, now_ns, false);
}

bool MeasuredLinks::AddTraffic(int64_t now_ns, const TrafficObservation& observation) {
  History& history = At(observation.from_site, observation.to_site);
  const bool lately = history.now.from_traffic && now_ns - history.now.at_ns < kTrafficIntervalNs;
  const bool empty = !observation.latency_ns.has_value() && !observation.bandwidth_bytes_per_s.has_value();
  // A bandwidth without any latency is no measurement of a link.
  const bool half = history.latencies.empty() && !observation.latency_ns.has_value();
  if (lately || empty || half) {
    return false;
  }
  v1::LinkMeasurement measurement;
  if (observation.latency_ns.has_value()) {
    measurement.set_latency_ns(*observation.latency_ns);
    measurement.set_latency_median_ns(*observation.latency_ns);
    measurement.set_latency_samples(observation.samples);
    Push(history.latencies, measurement);
  }
  if (observation.bandwidth_bytes_per_s.has_value()) {
    measurement.set_bandwidth_bytes_per_s(*observation.bandwidth_bytes_per_s);
    measurement.set_bandwidth_spread_bytes_per_s(observation.bandwidth_spread_bytes_per_s);
    measurement.set_bandwidth_samples(observation.samples);
    Push(history.bandwidths, measurement);
  }
  Update(history, now_ns, true);
  return true;
}

void MeasuredLinks::Restore(int64_t at_ns, const std::string& from, const std::string& to,
                            const v1::LinkMeasurement& measurement, bool from_traffic) {
  History& history = At(from, to);
  Push(history.latencies, measurement);
  if (measurement.bandwidth_bytes_per_s() > 0) {
    Push(history.bandwidths, measurement);
  }
  Update(history, at_ns, from_traffic);
}

void MeasuredLinks::Forget(const std::string& site) {
  std::erase_if(histories_, [&](const auto& entry) { return entry.first.first == site || entry.first.second == site; });
}

const MeasuredDirection* MeasuredLinks::Find(const std::string& from, const std::string& to) const {
  const auto found = histories_.find({from, to});
  return found == histories_.end() || found->second.now.measurements == 0 ? nullptr : &found->second.now;
}

}  // namespace geopipe
