// Measurements of the links, per direction, by probes of idle links and from the traffic of running jobs. A single
// measurement may have been disturbed, so the median of the latest three counts.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "geopipe/v1/cluster.pb.h"

namespace geopipe {

struct MeasuredDirection {
  v1::LinkMeasurement value;  // bandwidth 0: traffic has told the latency alone
  bool from_traffic = false;  // the latest measurement
  int64_t at_ns = 0;          // of the latest measurement, monotonic
  int32_t measurements = 0;
};

// One direction of a link, as seen from a job's messages.
struct TrafficObservation {
  std::string from_site;
  std::string to_site;
  std::optional<int64_t> latency_ns = std::nullopt;
  std::optional<double> bandwidth_bytes_per_s = std::nullopt;
  double bandwidth_spread_bytes_per_s = 0;
  int32_t samples = 1;
};

class MeasuredLinks {
 public:
  static constexpr size_t kKept = 3;
  // Shortest interval between updates of one direction from traffic.
  static constexpr int64_t kTrafficIntervalNs = 1'000'000'000;

  void AddProbe(int64_t now_ns, const std::string& from, const std::string& to, const v1::LinkMeasurement& measurement);
  // Adds what training saw. False when the direction was updated so lately that this was passed over.
  bool AddTraffic(int64_t now_ns, const TrafficObservation& observation);
  // Restores what an earlier life of the coordinator knew.
  void Restore(int64_t at_ns, const std::string& from, const std::string& to, const v1::LinkMeasurement& measurement,
               bool from_traffic);
  // Forgets the measurements of all links of a site, since they may have changed.
  void Forget(const std::string& site);

  // nullptr: never measured.
  const MeasuredDirection* Find(const std::string& from, const std::string& to) const;

 private:
  // The halves of a LinkMeasurement have histories of their own, since traffic does not always tell both.
  struct History {
    std::deque<v1::LinkMeasurement> latencies;
    std::deque<v1::LinkMeasurement> bandwidths;
    MeasuredDirection now;
  };

  History& At(const std::string& from, const std::string& to) { return histories_[{from, to}]; }
  static void Update(History& history, int64_t now_ns, bool from_traffic);

  std::map<std::pair<std::string, std::string>, History> histories_;
};

}  // namespace geopipe
