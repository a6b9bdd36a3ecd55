// The agent's end of the keeper (agent/keeper.h): starts it when none answers, passes on the core's orders, posts its
// news. When the connection breaks it reconnects, to a new keeper if need be, and posts the whole list. A keeper that
// lives and does not answer is killed, so that the next one follows it. The memory of workers' states is held here,
// too, and offered to each keeper, so that it outlives a keeper that dies with its worker.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <map>
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

// The part of command line and environment that all processes of this node that open UCX share.
ProcessSpec DataPlaneProcess(const AgentConfig& config);

// Adds what a process needs that computes on these GPUs, a list as CUDA_VISIBLE_DEVICES has it; empty: it sees those of
// the agent.
void AddGpus(const AgentConfig& config, const std::string& gpus, ProcessSpec& spec);

// Adds those of the agent's variables that concern its workers, beside which the process gets none.
void AddPassedEnvironment(const AgentConfig& config, ProcessSpec& spec);

// The command line and environment of one worker; the keeper gets AddPassedEnvironment's as well.
ProcessSpec WorkerProcess(const AgentConfig& config, const v1::WorkerId& worker);

// The command line of the node's keeper.
ProcessSpec KeeperProcess(const AgentConfig& config, const std::string& program);

struct WorkerSupervisorOptions {
  // Size past which the log of a worker's stdout and stderr, <state_dir>/logs/worker-<device>.log, is moved to <log>.1,
  // replacing the one before. Checked when a worker starts and now and then while it runs.
  size_t log_bytes = size_t{16} << 20;
  std::string keeper_program = {};  // empty: geopipe-agent beside this program
  int64_t ping_interval_ns = 1'000'000'000;
  int64_t keeper_silent_after_ns = 5'000'000'000;
  int64_t held_memory_ns = int64_t{3600} * 1'000'000'000;  // of a worker that has ended
};

class WorkerSupervisor {
 public:
  // Makes the folder of the logs. `config` outlives the supervisor. `post` is called from a thread of its own; first
  // with KeeperListed. A keeper that cannot be started is logged and tried again. Errors: NotFound (no such program),
  // and those of making the folder.
  static absl::StatusOr<std::unique_ptr<WorkerSupervisor>> Create(const AgentConfig& config,
                                                                  WorkerSupervisorOptions options, PostEvent post);
  // Leaves keeper and workers running, or ends them if they are to die with the agent. Nothing is posted once `post`
  // has answered false.
  ~WorkerSupervisor();
  WorkerSupervisor(const WorkerSupervisor&) = delete;
  WorkerSupervisor& operator=(const WorkerSupervisor&) = delete;

  // Carries out an effect without waiting; without a keeper nothing happens (agent/events.h). Any thread.
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
  // Pings the keeper. False when it has not answered for too long, and is killed.
  bool Ping(int fd);
  void OfferMemory();
  void Hold(const v1::KeptWorker& child);
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
  // Used by the thread alone.
  std::optional<Process> keeper_;
  std::optional<KeeperListed> list_;  // while it comes in
  // Memory of the latest worker of each device.
  struct Held {
    std::string job;
    uint64_t incarnation = 0;
    UniqueFd memory;
    std::optional<int64_t> ended_ns;
  };
  std::map<int32_t, Held> held_;
  bool pongs_ = false;  // this keeper answers pings
  uint64_t pings_ = 0;
  int64_t next_ping_ns_ = 0;
  std::optional<int64_t> unanswered_since_ns_;
  int64_t next_start_ns_ = 0;
  bool is_told_ = false;  // the keeper of this connection was told to end
  bool leaves_ = false;   // NodeLeaves was posted, and not taken back
  std::thread thread_;
};

}  // namespace geopipe::agent
