// The workers of one node, as a state machine: started, attached, commanded, stopped politely and then killed, reported
// when they have ended. At most one worker per device. Pure: time comes in, effects go out, and what the coordinator
// has to hear is handed to `report`.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/config.h"
#include "agent/events.h"

namespace geopipe::agent {

struct WorkerFleetOptions {
  // A worker that was started and has not attached by then is killed.
  int64_t attach_timeout_ns = int64_t{60} * 1'000'000'000;
  // How long the exit of a process waits for the last messages of its stream, so that they come first.
  int64_t drain_timeout_ns = 1'000'000'000;
  // Commands for a worker whose stream is broken.
  size_t waiting_commands = 64;
};

class WorkerFleet {
 public:
  using Report = std::function<void(v1::NodeReport)>;

  // `config` outlives the fleet. `report` takes what the coordinator is to know, in order.
  WorkerFleet(const AgentConfig& config, const WorkerFleetOptions& options, Report report);

  // Starts a worker on each device of the order. A device whose worker is ending takes the new one afterwards; one that
  // has this worker already is left alone. A device that does not exist or is held by another living worker is
  // reported as a WorkerExit of the new one, with the reason as its last words.
  void Start(int64_t now_ns, const v1::StartWorkers& order, Effects& effects);
  // Hands a command to the worker it names, or logs that there is none. A PrepareCommand gets this node's memory limit,
  // threads and pacer files.
  void Relay(v1::RelayedCommand command, Effects& effects);
  // Stops the workers of a job; those not yet started are not started any more.
  void Stop(int64_t now_ns, const v1::StopWorkers& order, Effects& effects);
  void StopAll(int64_t now_ns, int64_t grace_ns, const std::string& reason, Effects& effects);

  void OnStartFailed(int64_t now_ns, const WorkerStartFailed& event, Effects& effects);
  void OnExited(int64_t now_ns, WorkerExited event, Effects& effects);
  void OnMessage(WorkerMessage event, Effects& effects);
  void OnClosed(int64_t now_ns, const WorkerClosed& event, Effects& effects);
  void OnTime(int64_t now_ns, Effects& effects);

  // When OnTime next has something to do; the greatest time when it has not.
  int64_t next_deadline_ns() const;
  bool empty() const { return workers_.empty(); }
  // Alive at this moment (their end has not been seen).
  std::vector<v1::WorkerId> Living() const;

 private:
  struct Worker {
    v1::WorkerId id;
    int64_t attach_by_ns = 0;  // meaningful until it has attached once
    bool has_attached = false;
    std::optional<SessionId> session;
    std::deque<v1::AttachResponse> waiting;  // commands while there is no session
    std::optional<int64_t> kill_at_ns;       // it was told to stop
    bool killed = false;
    std::optional<WorkerExited> exited;  // its stream is still being read
    int64_t drained_by_ns = 0;
    std::optional<v1::WorkerId> successor;
  };
  using Workers = std::map<int32_t, Worker>;

  void StartOne(int64_t now_ns, const v1::WorkerId& id, Effects& effects);
  void Refuse(const v1::WorkerId& id, std::string reason, Effects& effects);
  void StopOne(int64_t now_ns, int64_t grace_ns, const std::string& reason, Worker& worker, Effects& effects);
  absl::Status CheckFirstMessage(const v1::AttachRequest& message) const;
  void Finish(int64_t now_ns, Workers::iterator at, Effects& effects);
  Worker* FindByKey(const WorkerKey& key);
  Workers::iterator FindBySession(SessionId session);
  void FillIn(v1::PrepareCommand& prepare) const;

  const AgentConfig& config_;
  const WorkerFleetOptions options_;
  const Report report_;
  Workers workers_;  // by device
};

}  // namespace geopipe::agent
