// The agent's end of the keeper (agent/keeper.h): starts it when none answers, hands it what the core orders, posts
// what it says. When the connection breaks it connects again, to a new keeper if need be, and posts the whole list.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "agent/config.h"
#include "agent/events.h"
#include "agent/post_event.h"
#include "geopipe/v1/keeper.pb.h"
#include "runtime/base/process.h"
#include "runtime/base/unique_fd.h"

namespace geopipe::agent {

// What every process of this node that opens UCX has in its command line and environment.
ProcessSpec DataPlaneProcess(const AgentConfig& config);

// The command line and environment of one worker.
ProcessSpec WorkerProcess(const AgentConfig& config, const v1::WorkerId& worker);

// The command line of the node's keeper.
ProcessSpec KeeperProcess(const AgentConfig& config, const std::string& program);

struct WorkerSupervisorOptions {
  // What a worker writes to stdout and stderr goes to <state_dir>/logs/worker-<device>.log. Past this size the log is
  // moved to <log>.1, which replaces the one before; at the start of a worker and now and then while it runs.
  size_t log_bytes = size_t{16} << 20;
  std::string keeper_program;  // empty: geopipe-agent beside this program
};

class WorkerSupervisor {
 public:
  // Makes the folder of the logs. `config` outlives the supervisor. `post` is called from a thread of its own; first
  // with KeeperListed. A keeper that cannot be started is logged and tried again. Errors: NotFound (no such program),
  // and those of making the folder.
  static absl::StatusOr<std::unique_ptr<WorkerSupervisor>> Create(const AgentConfig& config,
                                                                  WorkerSupervisorOptions options, PostEvent post);
  // Leaves keeper and workers, or ends them where they are to die with the agent. Nothing is posted once `post` has
  // answered false.
  ~WorkerSupervisor();
  WorkerSupervisor(const WorkerSupervisor&) = delete;
  WorkerSupervisor& operator=(const WorkerSupervisor&) = delete;

  // Without a keeper these do nothing (agent/events.h). They wait for nothing. Any thread.
  void Carry(const StartWorker& start);
  void Carry(const SignalWorker& signal);
  void Carry(const ForgetExit& forget);

 private:
  WorkerSupervisor(const AgentConfig& config, WorkerSupervisorOptions options, PostEvent post, UniqueFd wake);
  void Run();
  bool stopping();
  void StartKeeper();
  void Talk(int fd);
  bool SendRequests(int fd);
  bool Hear(int fd);
  bool OnNews(v1::KeeperNews news);
  bool Post(Event event);
  void Request(v1::KeeperRequest request);
  void Wake() const;

  const AgentConfig& config_;
  const WorkerSupervisorOptions options_;
  const PostEvent post_;
  const UniqueFd wake_;  // eventfd: there are requests, or the end has come
  std::mutex mutex_;
  std::deque<v1::KeeperRequest> requests_;
  bool connected_ = false;
  bool stopping_ = false;
  // Of the thread alone.
  std::optional<Process> keeper_;
  std::optional<KeeperListed> list_;  // while it comes in
  int64_t next_start_ns_ = 0;
  std::thread thread_;
};

}  // namespace geopipe::agent
