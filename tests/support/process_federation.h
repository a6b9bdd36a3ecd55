// A federation of real processes on this machine whose coordinator and agents are killed, stopped and started again
// while its workers train: one agent a site, rehearsed links between them. For tests and benchmarks.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/control_client.h"
#include "geopipe/v1/control_service.pb.h"
#include "runtime/base/files.h"
#include "runtime/base/process.h"
#include "tests/integration/processes.h"
#include "tests/support/bad_environment.h"
#include "tests/support/half_open_proxy.h"

namespace geopipe {

struct ProcessFederationOptions {
  std::vector<std::string> sites{"north", "east", "west"};
  int64_t latency_ns = 20'000'000;  // of the link between each two, one way
  double bandwidth_bytes_per_s = 1.25e8;
  int64_t orphan_grace_ns = 30'000'000'000;
  bool proxied = false;  // each agent reaches the coordinator through a proxy of its own
  // Gives each site a disk() of its own, as on separate machines. Needs mount namespaces (CanHaveOwnDisks).
  bool own_disks = false;
  // Size of each site's disks, its state folder's and disk(), and of the coordinator's; 0: those of this machine.
  int64_t disk_bytes = 0;
  bool bad_environments = false;  // environment(...) can be made bad
  int64_t restarts_per_hour = 0;  // of a worker; 0: the coordinator's default
  int32_t devices = 1;            // of each site
  bool own_program = false;       // workers are started from program(), which may be taken away
  std::string figures = {};       // of a device, as in an agent's file: "peak_flops: 1e9, memory_bandwidth: 1GB/s"
};

// True when this process may make mount namespaces.
bool CanHaveOwnDisks();

// Calls `look` every 20 ms until it returns true, and returns when that was. Errors: those of `look`; DeadlineExceeded
// with `what` after `timeout_ns`.
absl::StatusOr<int64_t> AwaitNs(const std::string& what, int64_t timeout_ns,
                                const std::function<absl::StatusOr<bool>()>& look);

// Main thread only (children are tied to the thread that starts them).
class ProcessFederation {
 public:
  // Returns when all agents have registered. Errors name the program and the end of its log.
  static absl::StatusOr<std::unique_ptr<ProcessFederation>> Start(const ProcessFederationOptions& options);
  // Leaves nothing running: kills keepers and workers, too.
  ~ProcessFederation();

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path disk() const { return folder_.path() / "disk"; }  // of each site, where they have their own
  std::filesystem::path program() const { return folder_.path() / "geopipe-worker"; }
  std::filesystem::path StateOf(size_t site) const { return folder_.path() / options_.sites[site]; }
  const std::string& endpoint() const { return endpoint_; }  // of the coordinator, in all its lives
  size_t sites() const { return options_.sites.size(); }
  const std::string& site(size_t index) const { return options_.sites[index]; }
  const std::vector<std::string>& site_names() const { return options_.sites; }

  // Precondition of Start...: that process was killed. The coordinator is back when it listens, an agent when the
  // coordinator has welcomed it.
  absl::Status StartCoordinator();
  absl::Status StartAgent(size_t site);
  // Puts a backup in the place of the coordinator's store. Precondition as above.
  absl::Status RestoreCoordinator(const std::string& backup) const;
  // The process alone, without waiting for it to be back.
  absl::Status LaunchAgent(size_t site);
  absl::Status AwaitAgent(size_t site);
  void KillCoordinator();
  void KillAgent(size_t site);
  // Starts what has ended of coordinator and agents, as systemd would, without waiting for agents to be welcome.
  // Errors: the coordinator cannot be started, as when its disk is full.
  absl::Status Revive();
  // All processes of the site at once, and what is on its disk.
  absl::Status LoseSite(size_t site);
  void Signal(int64_t pid, int signal) const;
  int64_t coordinator_pid() const { return coordinator_->process.pid(); }
  int64_t agent_pid(size_t site) const { return agents_[site]->process.pid(); }
  // nullopt: the device has none.
  std::optional<ProcessInfo> WorkerOf(size_t site, int32_t device = 0) const;
  std::optional<ProcessInfo> KeeperOf(size_t site) const;
  // The folders that are on disks of the site; of the coordinator where it is sites().
  std::vector<std::filesystem::path> DisksOf(size_t site) const;
  // The environment of the site's processes; of the coordinator where it is sites(). REQUIRES: bad_environments.
  BadEnvironment& environment(size_t site) { return *environments_[site]; }
  // Pacer file of the rehearsed link, in the direction from one site to the other.
  std::filesystem::path PacerOf(size_t from, size_t to) const;
  HalfOpenProxy& proxy(size_t site) { return *proxies_[site]; }

  // Log of a program over all its lives: "coordinator" or the name of a site, and of a worker.
  std::string Log(const std::string& name) const;
  std::string WorkerLog(size_t site) const;
  // Copies all logs to a folder, which is made.
  absl::Status CopyLogs(const std::filesystem::path& to) const;

  // Runs geopipectl to its end and returns what it printed. Errors: how it ended, with what it said.
  absl::StatusOr<std::string> RunGeopipectl(std::vector<std::string> arguments);
  // The same with --server.
  absl::StatusOr<std::string> Geopipectl(std::vector<std::string> arguments);
  // Client of the coordinator's present life.
  ControlClient& control() const { return *control_; }
  absl::StatusOr<v1::JobSummary> Summary(const std::string& job) const;
  // True when the coordinator hears all agents.
  absl::StatusOr<bool> AllConnected() const;
  // All iterations that the coordinator tells a watcher who begins at the first; of a job that is over. `run`: of the
  // name; 0: the latest.
  absl::StatusOr<std::vector<v1::IterationSummary>> Curve(const std::string& name, int64_t run = 0) const;
  // Waits until the job is in this state. Errors: Internal, with the cause, when it reaches another final one.
  absl::Status AwaitState(const std::string& name, v1::JobState state, int64_t timeout_ns) const;
  // Waits until `done` iterations are done.
  absl::Status AwaitIteration(const std::string& name, int64_t done, int64_t timeout_ns) const;

 private:
  struct Daemon {
    Process process;
    ReadyPipe ready;
  };

  ProcessFederation(ProcessFederationOptions options, TempFolder folder)
      : options_(std::move(options)), folder_(std::move(folder)), agents_(options_.sites.size()) {}

  // `site`: whose environment it has; sites() for the coordinator.
  absl::StatusOr<Daemon> Launch(const std::string& program, const std::string& name, size_t site,
                                std::vector<std::string> arguments, bool own_disk = false) const;
  std::filesystem::path DiskOf(const std::string& site) const { return folder_.path() / ("disk-" + site); }
  absl::StatusOr<std::string> AwaitReady(Daemon& daemon, const std::string& name) const;
  absl::Status WriteConfigurations();
  absl::Status MountDisks();
  absl::Status MakeEnvironments();
  std::string AgentConfig(size_t site) const;
  std::filesystem::path LogPath(const std::string& name) const { return folder_.path() / (name + ".log"); }

  const ProcessFederationOptions options_;
  TempFolder folder_;
  std::vector<std::filesystem::path> mounts_;
  std::vector<std::unique_ptr<BadEnvironment>> environments_;
  std::vector<std::unique_ptr<HalfOpenProxy>> proxies_;
  std::string endpoint_;
  std::unique_ptr<ControlClient> control_;
  std::optional<Daemon> coordinator_;
  std::vector<std::optional<Daemon>> agents_;
  int32_t commands_ = 0;  // geopipectl's so far: names of their output files
};

}  // namespace geopipe
