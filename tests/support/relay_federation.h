// A federation of real processes over a real slow link, for tests and benchmarks: coordinator, one agent for each of
// two sites and geopipectl run where this process runs, every worker in its site's network namespace, and what workers
// send to each other passes through a TunRelay, below TCP. Nothing is shaped above UCX. Needs root and /dev/net/tun.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/base/process.h"
#include "tests/support/tun_relay.h"
#include "tests/support/tun_sites.h"

namespace geopipe {

struct RelayFederationOptions {
  std::filesystem::path programs;                    // folder of the installation; empty: the running program's
  std::array<std::string, 2> sites{"east", "west"};  // one device each
  RelayLinkOptions link;                             // declared as it is
  TunHostSettings hosts;
  int64_t orphan_grace_ns = 30'000'000'000;
};

// Results of a job that has completed.
struct RelayRun {
  std::string job;
  nlohmann::json description;              // `geopipectl describe -o json`
  std::vector<nlohmann::json> iterations;  // as `geopipectl watch -o json` told them: iteration, loss, duration_s
  int64_t reconnects = 0;                  // of the path between the two workers
};

// "iteration loss grad_norm" line by line, as they were printed: equal text is equal bits.
std::string NumbersOf(const std::vector<nlohmann::json>& iterations);

// Main thread only (children are tied to the thread that starts them).
class RelayFederation {
 public:
  // Called in the caller's thread, between two looks at what is reported.
  using OnIteration = std::function<void(const nlohmann::json& iteration)>;

  // Returns when both agents have registered. Unavailable where sites cannot be made; other errors name the program
  // and the end of its log. Everything ends with this object, and with the thread that made it.
  static absl::StatusOr<std::unique_ptr<RelayFederation>> Start(const RelayFederationOptions& options);
  ~RelayFederation();

  TunRelay& relay() { return *relay_; }
  const std::string& endpoint() const { return endpoint_; }  // of the coordinator
  Process& agent(size_t site) { return daemons_[1 + site]; }

  // Runs geopipectl to its end and returns what it printed on standard output. Errors: how it ended, with what it said.
  absl::StatusOr<std::string> Geopipectl(const std::vector<std::string>& arguments, int64_t timeout_ns);
  // Submits a job (`arguments` of `geopipectl apply`) and follows it to COMPLETED. Internal, with the cause, when it
  // ends otherwise; DeadlineExceeded when it does not end within `timeout_ns`.
  absl::StatusOr<RelayRun> Train(std::vector<std::string> arguments, int64_t timeout_ns,
                                 const OnIteration& on_iteration = {});
  // `geopipectl trace`: the job's latest iteration beside the predicted one.
  absl::Status WriteTrace(const std::string& job, const std::filesystem::path& path);

 private:
  RelayFederation(RelayFederationOptions options, TempFolder folder)
      : options_(std::move(options)), folder_(std::move(folder)) {}

  absl::StatusOr<std::string> Program(const std::string& name) const;
  absl::Status StartPrograms();
  absl::StatusOr<std::string> WriteWorkerScript(size_t site) const;
  std::string AgentConfig(size_t site, const std::string& worker) const;
  absl::StatusOr<std::string> Launch(const std::string& program, const std::string& name);
  absl::StatusOr<Process> StartGeopipectl(const std::vector<std::string>& arguments);
  absl::Status Follow(const std::string& job, int64_t timeout_ns, const OnIteration& on_iteration,
                      std::vector<nlohmann::json>& iterations);
  absl::StatusOr<int64_t> CountReconnects() const;

  const RelayFederationOptions options_;
  TempFolder folder_;
  std::optional<TunSites> sites_;
  std::unique_ptr<TunRelay> relay_;
  std::string endpoint_;
  std::vector<Process> daemons_;     // the coordinator first
  int32_t commands_ = 0;             // geopipectl's so far: names of their output files
  std::filesystem::path out_, err_;  // of the latest
};

}  // namespace geopipe
