// Starts worker processes, watches for their end, keeps their output. Every worker that Start has started is followed
// by one WorkerExited, however it ended.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "agent/config.h"
#include "agent/events.h"
#include "agent/post_event.h"
#include "runtime/base/process.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {

// What every process of this node that opens UCX has in its command line and environment.
ProcessSpec DataPlaneProcess(const AgentConfig& config);

// The command line and environment of one worker.
ProcessSpec WorkerProcess(const AgentConfig& config, const v1::WorkerId& worker);

struct WorkerSupervisorOptions {
  // What a worker writes to stdout and stderr goes to <state_dir>/logs/worker-<device>.log. Past this size the log is
  // moved to <log>.1, which replaces the one before; at the start of a worker and now and then while it runs.
  size_t log_bytes = size_t{16} << 20;
  int64_t log_check_interval_ns = 10'000'000'000;
  size_t last_words_bytes = 4096;
};

class WorkerSupervisor {
 public:
  // Makes the folder of the logs. `config` outlives the supervisor. `post` is called from a thread of its own.
  static absl::StatusOr<std::unique_ptr<WorkerSupervisor>> Create(const AgentConfig& config,
                                                                  const WorkerSupervisorOptions& options,
                                                                  PostEvent post);
  // Kills the workers that still run, unless LeaveAll was called. Nothing is posted once `post` has answered false.
  ~WorkerSupervisor();
  WorkerSupervisor(const WorkerSupervisor&) = delete;
  WorkerSupervisor& operator=(const WorkerSupervisor&) = delete;

  // Returns the pid. At most one worker per device at a time. Workers of an agent that dies with its parent die with
  // the calling thread.
  absl::StatusOr<int64_t> Start(const v1::WorkerId& worker);

  // Does nothing when that worker has ended.
  void Signal(const WorkerKey& worker, int signal);

  // The workers live on when this object goes.
  void LeaveAll();

 private:
  struct Running {
    WorkerKey key;
    Process process;
    std::string log_path;
    int64_t log_start = 0;  // where this worker's own output begins
  };

  WorkerSupervisor(const AgentConfig& config, const WorkerSupervisorOptions& options, PostEvent post, UniqueFd wake);
  void Watch();
  bool ReapEnded();
  void CheckLogs();
  void Wake() const;

  const AgentConfig& config_;
  const WorkerSupervisorOptions options_;
  const PostEvent post_;
  const UniqueFd wake_;  // eventfd: the set of workers has changed, or the end
  std::mutex mutex_;
  std::map<int32_t, Running> running_;  // by device
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace geopipe::agent
