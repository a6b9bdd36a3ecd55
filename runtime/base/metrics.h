// Metrics of one process, scraped over HTTP by Prometheus. metric_names.h lists them all.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/listen_address.h"
#include "runtime/base/metric_names.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace geopipe {

// Handles to series: cheap to copy, valid while the registry lives and the series has not been removed. Any thread;
// they wait at most while a scrape copies one series.
class Counter {
 public:
  explicit Counter(prometheus::Counter* series) : series_(series) {}
  // REQUIRES: by >= 0.
  void Add(double by = 1) const;

 private:
  prometheus::Counter* series_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* series) : series_(series) {}
  void Set(double value) const;

 private:
  prometheus::Gauge* series_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* series) : series_(series) {}
  void Observe(double value) const;

 private:
  prometheus::Histogram* series_;
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;  // key, value
using LabelValues = std::vector<std::string>;                           // in the order of MetricSpec::labels

// Thread-safe.
class MetricRegistry {
 public:
  // `process_labels` go on every series.
  explicit MetricRegistry(const MetricLabels& process_labels);
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The series of these label values, made (at zero) if there is none. REQUIRES: as many values as the spec has labels,
  // and its kind.
  Counter GetCounter(const MetricSpec& spec, const LabelValues& values = {});
  Gauge GetGauge(const MetricSpec& spec, const LabelValues& values = {});
  Histogram GetHistogram(const MetricSpec& spec, const LabelValues& values = {});

  // Removes every series made with this label.
  void Remove(std::string_view label, std::string_view value);

  // Sets a function that is called on the scraping thread before the values of a scrape are read, one scrape at a time:
  // for values that are looked up rather than counted. Objects that it uses outlive the endpoints. Call before the
  // first scrape.
  void OnScrape(std::function<void()> refresh);

  // The text exposition, as a scrape gets it.
  std::string Text();

 private:
  friend class MetricsEndpoint;
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

// An HTTP server on loopback that answers GET /metrics, with three threads of its own, asleep between requests; nothing
// else in the process ever waits for a scrape. It adds exposer_* about itself.
class MetricsEndpoint {
 public:
  struct Options {
    std::string address;       // host:port, loopback; port 0: any free one
    std::string address_file;  // the bound address is written there, and removed at the end; empty: nowhere
  };
  // Returns a server that is listening. InvalidArgument, PermissionDenied: the address is no address, or not loopback.
  // Unavailable: the system cannot listen on it. Other errors are those of writing the file. The registry outlives the
  // endpoint.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const Options& options, MetricRegistry& registry);
  // Ends the threads once they have answered the requests under way.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // "127.0.0.1:40123".
  const std::string& address() const { return address_; }

 private:
  class Server;
  MetricsEndpoint(ListenAddress bound, std::string address_file, std::unique_ptr<Server> server);

  const ListenAddress bound_;
  const std::string address_;
  const std::string address_file_;
  std::unique_ptr<Server> server_;
};

}  // namespace geopipe
