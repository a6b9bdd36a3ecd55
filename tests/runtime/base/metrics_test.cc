#include "runtime/base/metrics.h"

#include <catch2/catch.hpp>
#include <regex>
#include <set>
#include <string>
#include <thread>

#include "runtime/base/files.h"
#include "runtime/base/listen_address.h"
#include "tests/support/scrape.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

MetricsEndpoint::Options At(const std::string& address) { return {.address = address, .address_file = ""}; }

// Every metric once, of made-up values.
void FillAll(MetricRegistry& registry) {
  for (const MetricSpec* spec : metrics::kAll) {
    LabelValues values;
    for (const std::string_view label : spec->labels) {
      if (!label.empty()) {
        values.emplace_back("some " + std::string(label));
      }
    }
    switch (spec->kind) {
      case MetricKind::kCounter:
        registry.GetCounter(*spec, values).Add(3);
        break;
      case MetricKind::kGauge:
        registry.GetGauge(*spec, values).Set(-0.5);
        break;
      case MetricKind::kHistogram:
        registry.GetHistogram(*spec, values).Observe(0.02);
        break;
    }
  }
}

TEST_CASE("what is counted is scraped over HTTP, with the labels of process and series") {
  MetricRegistry registry(MetricLabels{{"site", "north"}});
  const Counter counter = registry.GetCounter(metrics::kRankIterations, {"1"});
  counter.Add();
  registry.GetCounter(metrics::kRankIterations, {"1"}).Add(2);  // the same series
  registry.GetGauge(metrics::kMemory, {"a \"strange\\name\""}).Set(12.5);
  const Histogram histogram = registry.GetHistogram(metrics::kRankIterationSeconds, {"1"});
  histogram.Observe(0.3);
  histogram.Observe(40);
  int scrapes = 0;
  registry.OnScrape([&] { registry.GetGauge(metrics::kWorkers).Set(++scrapes); });

  const auto endpoint = MetricsEndpoint::Start(At("127.0.0.1:0"), registry);
  REQUIRE(endpoint.ok());
  CHECK((*endpoint)->address().starts_with("127.0.0.1:"));
  CHECK_FALSE((*endpoint)->address().ends_with(":0"));
  const std::string text = Scrape((*endpoint)->address());
  INFO(text);
  CHECK(text.find("# TYPE geopipe_rank_iterations_total counter\n") != std::string::npos);
  CHECK(text.find("# HELP geopipe_rank_iterations_total " + std::string(metrics::kRankIterations.help)) !=
        std::string::npos);
  CHECK(SeriesValue(text, "geopipe_rank_iterations_total", {{"site", "north"}, {"rank", "1"}}) == 3);
  CHECK(SeriesValue(text, "geopipe_memory_bytes", {{"category", "a \\\"strange\\\\name\\\""}}) == 12.5);
  CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_count") == 2);
  CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_sum") == Approx(40.3));
  CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_bucket", {{"le", "0.25"}}) == 0);
  CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_bucket", {{"le", "0.5"}}) == 1);
  CHECK(SeriesValue(text, "geopipe_rank_iteration_seconds_bucket", {{"le", "+Inf"}}) == 2);
  CHECK(SeriesValue(text, "geopipe_workers") == 1);
  CHECK(SeriesValue(Scrape((*endpoint)->address()), "geopipe_workers") == 2);
  CHECK(HttpGet((*endpoint)->address(), "/elsewhere").starts_with("HTTP/1.1 404"));
}

TEST_CASE("series go with their label") {
  MetricRegistry registry({});
  registry.GetCounter(metrics::kTokens, {"old"}).Add(7);
  registry.GetGauge(metrics::kLoss, {"old"}).Set(1);
  registry.GetGauge(metrics::kLoss, {"new"}).Set(2);
  registry.Remove("training_job", "old");
  CHECK_FALSE(SeriesValue(registry.Text(), "geopipe_tokens_total", {{"training_job", "old"}}).has_value());
  CHECK(SeriesValue(registry.Text(), "geopipe_loss") == 2);
  registry.GetCounter(metrics::kTokens, {"old"}).Add(1);
  CHECK(SeriesValue(registry.Text(), "geopipe_tokens_total", {{"training_job", "old"}}) == 1);
}

TEST_CASE("a port in use is refused with the address and the remedy, and is free again afterwards") {
  MetricRegistry registry({});
  auto first = MetricsEndpoint::Start(At("127.0.0.1:0"), registry);
  REQUIRE(first.ok());
  const std::string address = (*first)->address();
  const auto second = MetricsEndpoint::Start(At(address), registry);
  CHECK(second.status().code() == absl::StatusCode::kUnavailable);
  CHECK(second.status().message() == "metrics: cannot listen on " + address +
                                         ": the port is in use by another process; stop it or choose another port");
  first->reset();
  CHECK(MetricsEndpoint::Start(At(address), registry).ok());
}

TEST_CASE("nothing but loopback is listened on") {
  MetricRegistry registry({});
  for (const std::string open : {"0.0.0.0:0", "192.0.2.1:9464", "[::]:0", "example.org:80"}) {
    CHECK(MetricsEndpoint::Start(At(open), registry).status().code() == absl::StatusCode::kPermissionDenied);
  }
  for (const std::string wrong : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:http", ""}) {
    CHECK(MetricsEndpoint::Start(At(wrong), registry).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(ParseListenAddress("metrics", "0.0.0.0:1").status().message() ==
        "metrics: refuses to listen on 0.0.0.0:1: without certificates only loopback is allowed; use 127.0.0.1 or "
        "[::1]");
}

TEST_CASE("the bound address lies in the file while the endpoint lives") {
  const TempDir folder;
  const std::string path = folder.path() + "/metrics.address";
  MetricRegistry registry({});
  auto endpoint = MetricsEndpoint::Start({.address = "localhost:0", .address_file = path}, registry);
  REQUIRE(endpoint.ok());
  CHECK(ReadFile(path, 100).value() == (*endpoint)->address() + "\n");
  endpoint->reset();
  CHECK(absl::IsNotFound(ReadFile(path, 100).status()));
}

TEST_CASE("threads count while others scrape") {
  MetricRegistry registry({});
  registry.OnScrape([&] { registry.GetCounter(metrics::kReconnects).Add(); });
  constexpr int kRounds = 2000;
  const auto count = [&] {
    for (int i = 0; i < kRounds; ++i) {
      registry.GetCounter(metrics::kTokens, {std::to_string(i % 7)}).Add();
      registry.GetHistogram(metrics::kIterationSeconds, {"a"}).Observe(1);
    }
  };
  std::thread one(count);
  std::thread two(count);
  for (int i = 0; i < 20; ++i) {
    registry.Text();
  }
  one.join();
  two.join();
  CHECK(SeriesValue(registry.Text(), "geopipe_iteration_seconds_count") == 2 * kRounds);
  CHECK(SeriesValue(registry.Text(), "geopipe_transport_reconnects_total") == 22);
}

// Rules of `promtool check metrics`, for machines without it.
TEST_CASE("names are in base units, counters end in _total, and all have a meaning") {
  std::set<std::string_view> names;
  for (const MetricSpec* spec : metrics::kAll) {
    INFO(spec->name);
    CHECK(names.insert(spec->name).second);
    CHECK(std::regex_match(std::string(spec->name), std::regex("geopipe_[a-z]+(_[a-z]+)*")));
    CHECK(spec->name.ends_with("_total") == (spec->kind == MetricKind::kCounter));
    CHECK(spec->help.ends_with('.'));
    CHECK(spec->bounds.empty() == (spec->kind != MetricKind::kHistogram));
    CHECK_FALSE(std::regex_search(std::string(spec->name),
                                  std::regex("_(bucket|count|sum|gauge|counter|histogram|summary|ms|ns|milliseconds|"
                                             "nanoseconds|minutes|bits|percent|kilobytes|megabytes)(_|$)")));
    for (const std::string_view label : spec->labels) {
      for (const std::string_view reserved : {"job", "instance", "le", "quantile"}) {
        CHECK(label != reserved);
      }
    }
  }
}

TEST_CASE("docs/metrics.md lists every metric with its labels, and no other") {
  const std::string docs = ReadFile(std::string(GEOPIPE_SOURCE_DIR) + "/docs/metrics.md", 1 << 20).value();
  std::set<std::string> names;
  for (const MetricSpec* spec : metrics::kAll) {
    names.emplace(spec->name);
    std::string row = "| `" + std::string(spec->name) + "` | ";
    for (size_t i = 0; i < spec->labels.size() && !spec->labels[i].empty(); ++i) {
      row += (i == 0 ? "" : ", ") + std::string(spec->labels[i]);
    }
    INFO(row);
    CHECK(docs.find(row) != std::string::npos);
  }
  const std::regex name("`(geopipe_[a-z_]+)`");
  for (auto at = std::sregex_iterator(docs.begin(), docs.end(), name); at != std::sregex_iterator(); ++at) {
    INFO((*at)[1].str());
    CHECK(names.contains((*at)[1].str()));
  }
}

TEST_CASE("promtool has nothing against any metric") {
  MetricRegistry registry(MetricLabels{{"rack", "r0"}});
  FillAll(registry);
  const auto endpoint = MetricsEndpoint::Start(At("127.0.0.1:0"), registry);
  REQUIRE(endpoint.ok());
  Scrape((*endpoint)->address());
  const std::optional<std::string> findings = PromtoolFindings(Scrape((*endpoint)->address()));
  if (!findings.has_value()) {
    Skip("promtool is not installed (package prometheus)");
    return;
  }
  INFO(*findings);
  CHECK(findings->empty());
}

}  // namespace
}  // namespace geopipe
