#include "runtime/base/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <variant>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"

namespace geopipe {
namespace {

constexpr std::string_view kThreads = "2";  // number that answer requests; one more accepts them
constexpr std::string_view kRequestTimeoutMs = "5000";

prometheus::Labels LabelsOf(const MetricSpec& spec, const LabelValues& values) {
  prometheus::Labels labels;
  size_t count = 0;
  for (; count < spec.labels.size() && !spec.labels[count].empty(); ++count) {
    GP_CHECK(count < values.size(), "{}: {} label values", spec.name, values.size());
    labels.emplace(spec.labels[count], values[count]);
  }
  GP_CHECK(count == values.size(), "{}: {} label values for {} labels", spec.name, values.size(), count);
  return labels;
}

prometheus::Labels ToPrometheus(const MetricLabels& labels) { return {labels.begin(), labels.end()}; }

}  // namespace

void Counter::Add(double by) const { series_->Increment(by); }
void Gauge::Set(double value) const { series_->Set(value); }
void Histogram::Observe(double value) const { series_->Observe(value); }

class MetricRegistry::Impl final : public prometheus::Collectable {
 public:
  explicit Impl(prometheus::Labels process_labels) : process_labels_(std::move(process_labels)) {}

  template <class Series, class... Args>
  Series* Get(const MetricSpec& spec, const LabelValues& values, const Args&... args) {
    const std::lock_guard lock(mutex_);
    const auto [found, added] = families_.try_emplace(std::string(spec.name));
    if (added) {
      found->second = &Builder<Series>()
                           .Name(std::string(spec.name))
                           .Help(std::string(spec.help))
                           .Labels(process_labels_)
                           .Register(registry_);
    }
    auto** family = std::get_if<prometheus::Family<Series>*>(&found->second);
    GP_CHECK(family != nullptr, "{} is used as two kinds of metric", spec.name);
    prometheus::Labels labels = LabelsOf(spec, values);
    const bool is_new = !(*family)->Has(labels);
    Series* series = &(*family)->Add(labels, args...);
    if (is_new) {
      made_.push_back({std::move(labels), [family = *family, series] { family->Remove(series); }});
    }
    return series;
  }

  void Remove(std::string_view label, std::string_view value) {
    const std::lock_guard lock(mutex_);
    std::erase_if(made_, [&](const Made& made) {
      const auto found = made.labels.find(std::string(label));
      if (found == made.labels.end() || found->second != value) {
        return false;
      }
      made.remove();
      return true;
    });
  }

  void OnScrape(std::function<void()> refresh) {
    const std::lock_guard lock(scrape_mutex_);
    refreshes_.push_back(std::move(refresh));
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::lock_guard lock(scrape_mutex_);
    for (const std::function<void()>& refresh : refreshes_) {
      refresh();
    }
    return registry_.Collect();
  }

 private:
  template <class Series>
  static auto Builder() {
    if constexpr (std::is_same_v<Series, prometheus::Counter>) {
      return prometheus::BuildCounter();
    } else if constexpr (std::is_same_v<Series, prometheus::Gauge>) {
      return prometheus::BuildGauge();
    } else {
      return prometheus::BuildHistogram();
    }
  }

  using Family = std::variant<prometheus::Family<prometheus::Counter>*, prometheus::Family<prometheus::Gauge>*,
                              prometheus::Family<prometheus::Histogram>*>;
  struct Made {
    prometheus::Labels labels;
    std::function<void()> remove;
  };

  const prometheus::Labels process_labels_;
  prometheus::Registry registry_;
  mutable std::mutex scrape_mutex_;
  std::vector<std::function<void()>> refreshes_;
  std::mutex mutex_;  // never held while scrape_mutex_ is being waited for
  std::map<std::string, Family> families_;
  std::vector<Made> made_;
};

MetricRegistry::MetricRegistry(const MetricLabels& process_labels)
    : impl_(std::make_shared<Impl>(ToPrometheus(process_labels))) {}

MetricRegistry::~MetricRegistry() = default;

Counter MetricRegistry::GetCounter(const MetricSpec& spec, const LabelValues& values) {
  GP_CHECK(spec.kind == MetricKind::kCounter, "{} is not a counter", spec.name);
  return Counter(impl_->Get<prometheus::Counter>(spec, values));
}

Gauge MetricRegistry::GetGauge(const MetricSpec& spec, const LabelValues& values) {
  GP_CHECK(spec.kind == MetricKind::kGauge, "{} is not a gauge", spec.name);
  return Gauge(impl_->Get<prometheus::Gauge>(spec, values));
}

Histogram MetricRegistry::GetHistogram(const MetricSpec& spec, const LabelValues& values) {
  GP_CHECK(spec.kind == MetricKind::kHistogram, "{} is not a histogram", spec.name);
  return Histogram(impl_->Get<prometheus::Histogram>(
      spec, values, prometheus::Histogram::BucketBoundaries(spec.bounds.begin(), spec.bounds.end())));
}

void MetricRegistry::Remove(std::string_view label, std::string_view value) { impl_->Remove(label, value); }
void MetricRegistry::OnScrape(std::function<void()> refresh) { impl_->OnScrape(std::move(refresh)); }
std::string MetricRegistry::Text() { return prometheus::TextSerializer().Serialize(impl_->Collect()); }

class MetricsEndpoint::Server {
 public:
  // Passes on the exceptions of the library.
  explicit Server(const ListenAddress& address)
      : exposer_(std::vector<std::string>{"listening_ports", ToString(address), "num_threads", std::string(kThreads),
                                          "request_timeout_ms", std::string(kRequestTimeoutMs)}) {}

  prometheus::Exposer& exposer() { return exposer_; }

 private:
  prometheus::Exposer exposer_;
};

MetricsEndpoint::MetricsEndpoint(ListenAddress bound, std::string address_file, std::unique_ptr<Server> server)
    : bound_(std::move(bound)),
      address_(ToString(bound_)),
      address_file_(std::move(address_file)),
      server_(std::move(server)) {}

MetricsEndpoint::~MetricsEndpoint() {
  if (!address_file_.empty()) {
    unlink(address_file_.c_str());
  }
  // The accepting thread sleeps for up to two seconds before it sees that it shall end, unless somebody connects.
  const std::future<void> ended = std::async(std::launch::async, [this] { server_.reset(); });
  while (ended.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    TouchListener(bound_);
  }
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const Options& options,
                                                                        MetricRegistry& registry) {
  GP_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress("metrics", options.address));
  const auto add_key = [](const absl::Status& status) {
    return absl::Status(status.code(), fmt::format("metrics: {}", std::string(status.message())));
  };
  if (const absl::Status status = CheckBindable(address); !status.ok()) {
    return add_key(status);
  }
  std::unique_ptr<Server> server;
  try {
    server = std::make_unique<Server>(address);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        fmt::format("metrics: cannot listen on {}: {}; choose another address", ToString(address), error.what()));
  }
  const std::vector<int> ports = server->exposer().GetListeningPorts();
  if (ports.size() != 1) {
    return absl::UnavailableError(
        fmt::format("metrics: cannot listen on {}; choose another address", ToString(address)));
  }
  address.port = ports.front();
  server->exposer().RegisterCollectable(registry.impl_);
  if (!options.address_file.empty()) {
    GP_RETURN_IF_ERROR(WriteFileAtomically(options.address_file, ToString(address) + "\n"));
  }
  return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(address, options.address_file, std::move(server)));
}

}  // namespace geopipe
