#include "coordinator/cluster/link_traffic.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "coordinator/cluster/links.h"
#include "optimizer/simulator/measured_iteration.h"
#include "proto/wire/control_wire.h"

namespace geopipe {
namespace {

// Clocks and wake-ups are accurate to some tenths of a millisecond.
constexpr int64_t kMinSerializationNs = 2'000'000;
// Smallest share of the crossing, for the same reason.
constexpr double kMinShare = 0.1;
constexpr size_t kMinMessages = 4;

using Latencies = std::map<SitePair, int64_t>;

Latencies LatenciesOf(const v1::IterationTimeline& timeline, const Plan& plan) {
  Latencies latencies;
  for (const v1::RankTimeline& rank : timeline.ranks()) {
    for (const v1::PeerClock& clock : rank.clocks()) {
      if (std::max(rank.rank(), clock.rank()) >= plan.grid.size() || clock.round_trip_ns() <= 0) {
        continue;
      }
      const std::string& from = plan.SiteOfRank(rank.rank());
      const std::string& to = plan.SiteOfRank(clock.rank());
      if (from == to) {
        continue;
      }
      const int64_t latency_ns = clock.round_trip_ns() / 2;
      const auto [found, added] = latencies.try_emplace(PairOf(from, to), latency_ns);
      found->second = std::min(found->second, latency_ns);
    }
  }
  return latencies;
}

// Messages between stages by boundary and direction; none when replicas share the links with them.
std::map<std::pair<int32_t, bool>, std::vector<MessageTiming>> MessagesOf(const v1::IterationTimeline& timeline,
                                                                          const Plan& plan) {
  std::map<std::pair<int32_t, bool>, std::vector<MessageTiming>> messages;
  const absl::StatusOr<std::vector<std::vector<ActionTiming>>> actions = ActionsOf(timeline, plan);
  if (!actions.ok() || plan.grid.data * plan.grid.tensor > 1) {
    return messages;
  }
  for (const MessageTiming& message :
       MakeMeasuredIteration(timeline.iteration(), timeline.duration_ns(), *actions, plan.Shape()).messages) {
    const bool upwards = message.send.kind == ActionKind::kSendForward;
    messages[{upwards ? message.send.stage : message.send.stage - 1, upwards}].push_back(message);
  }
  return messages;
}

// Times the link took to send each message, in the order they were handed over. `besides_ns`: time a message takes on
// an idle link, besides being sent.
std::vector<double> SerializationsNs(std::vector<MessageTiming> messages, int64_t besides_ns) {
  std::ranges::stable_sort(messages, {}, &MessageTiming::ready_ns);
  std::vector<double> serializations;
  int64_t free_ns = std::numeric_limits<int64_t>::min();
  for (const MessageTiming& message : messages) {
    const int64_t sent_ns = message.arrive_ns - besides_ns;
    const int64_t begin_ns = std::max(message.ready_ns, free_ns);
    if (sent_ns > begin_ns) {
      serializations.push_back(static_cast<double>(sent_ns - begin_ns));
    }
    free_ns = std::max(free_ns, sent_ns);
  }
  return serializations;
}

// The `share` quantile, which is one of the samples.
double SampleAt(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void TellBandwidth(std::vector<double> serializations_ns, int64_t message_bytes, int64_t latency_ns,
                   TrafficObservation& observation) {
  if (serializations_ns.size() < kMinMessages) {
    return;
  }
  std::ranges::sort(serializations_ns);
  const double median_ns = SampleAt(serializations_ns, 0.5);
  if (median_ns < static_cast<double>(kMinSerializationNs) ||
      median_ns < kMinShare * (median_ns + static_cast<double>(latency_ns))) {
    return;
  }
  const double bytes_e9 = static_cast<double>(message_bytes) * 1e9;
  observation.bandwidth_bytes_per_s = bytes_e9 / median_ns;
  observation.bandwidth_spread_bytes_per_s =
      (bytes_e9 / SampleAt(serializations_ns, 0.25) - bytes_e9 / SampleAt(serializations_ns, 0.75)) / 2;
  observation.samples = static_cast<int32_t>(serializations_ns.size());
}

}  // namespace

std::vector<TrafficObservation> ObserveTraffic(const v1::IterationTimeline& timeline, const Plan& plan,
                                               const PipelineCosts& costs) {
  std::map<std::pair<std::string, std::string>, TrafficObservation> observations;
  for (const auto& [pair, latency_ns] : LatenciesOf(timeline, plan)) {
    observations[pair] = {.from_site = pair.first, .to_site = pair.second, .latency_ns = latency_ns};
    observations[{pair.second, pair.first}] = {
        .from_site = pair.second, .to_site = pair.first, .latency_ns = latency_ns};
  }
  std::map<SitePair, int> crossings;
  for (const int32_t boundary : plan.Crossings()) {
    ++crossings[PairOf(plan.SiteOf(boundary), plan.SiteOf(boundary + 1))];
  }
  for (auto& [way, timings] : MessagesOf(timeline, plan)) {
    const auto [boundary, upwards] = way;
    if (boundary < 0 || std::cmp_greater_equal(boundary, costs.boundaries.size())) {
      continue;
    }
    const std::string& low = plan.SiteOf(boundary);
    const std::string& high = plan.SiteOf(boundary + 1);
    const auto observation = observations.find(upwards ? std::pair(low, high) : std::pair(high, low));
    if (low == high || crossings[PairOf(low, high)] != 1 || observation == observations.end()) {
      continue;
    }
    const int64_t latency_ns = *observation->second.latency_ns;
    const BoundaryCost& cost = costs.boundaries[static_cast<size_t>(boundary)];
    TellBandwidth(SerializationsNs(std::move(timings), latency_ns + cost.overhead_ns), cost.message_bytes, latency_ns,
                  observation->second);
  }
  std::vector<TrafficObservation> found;
  found.reserve(observations.size());
  for (auto& [way, observation] : observations) {
    found.push_back(std::move(observation));
  }
  return found;
}

}  // namespace geopipe
