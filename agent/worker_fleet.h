// The workers of one node, as a state machine: started or adopted from the keeper, attached, commanded, stopped
// politely and then killed, reported when they have ended. At most one worker per device. Pure: time comes in, effects
// go out, and what the coordinator has to hear is handed to `report`.
//
// Commands are numbered per worker and kept until the worker has taken them. A worker's numbered reports are passed on
// once; it hears that one was taken when the coordinator has taken it. An exit is forgotten by the keeper after that,
// too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/config.h"
#include "agent/events.h"

namespace geopipe::agent {

struct WorkerFleetOptions {
  uint64_t incarnation = 0;  // of this agent process
  // A worker that was started or adopted and has not attached by then is killed, but not before its orphan grace must
  // have ended it.
  int64_t attach_timeout_ns = int64_t{60} * 1'000'000'000;
  int64_t orphan_margin_ns = int64_t{5} * 1'000'000'000;
  // Longest wait of a process's exit for the last messages of its stream, so that they come first.
  int64_t drain_timeout_ns = 1'000'000'000;
  // Limit on the commands that a worker has not taken; one that leaves more is killed.
  size_t waiting_commands = 64;
  int64_t beat_interval_ns = 1'000'000'000;
  // Silence after which a worker is reported that is attached, or was adopted and should dial.
  int64_t worker_silent_after_ns = int64_t{4} * 1'000'000'000;
  // Grace of a worker that is stopped by a relayed command, which names none.
  int64_t relayed_stop_grace_ns = int64_t{10} * 1'000'000'000;
};

class WorkerFleet {
 public:
  using Report = std::function<void(v1::NodeReport)>;

  // `config` outlives the fleet. `report` takes the reports for the coordinator, in order.
  WorkerFleet(const AgentConfig& config, const WorkerFleetOptions& options, Report report);

  // Starts a worker on each device of the order. A device whose worker is ending takes the new one afterwards; one that
  // has this worker already, or had it and its exit is being told, is left alone. A device that does not exist or is
  // held by another living worker is reported as a WorkerExit of the new one, with the reason as its last words.
  void Start(int64_t now_ns, const v1::StartWorkers& order, Effects& effects);
  // Hands a command to the worker it names, or logs that there is none. A PrepareCommand gets this node's memory limit,
  // threads and pacer files.
  void Relay(int64_t now_ns, v1::RelayedCommand command, Effects& effects);
  // Stops the workers of a job; those not yet started are not started any more.
  void Stop(int64_t now_ns, const v1::StopWorkers& order, Effects& effects);
  void StopAll(int64_t now_ns, int64_t grace_ns, const std::string& reason, Effects& effects);

  // Adopts the workers of the first list, which earlier agents have left; compares later ones with what is known: a
  // worker that is missing has ended, or is started (again) when the keeper never said that it runs.
  void OnListed(int64_t now_ns, const KeeperListed& event, Effects& effects);
  void OnStarted(const WorkerStarted& event, Effects& effects);
  void OnStartFailed(int64_t now_ns, const WorkerStartFailed& event, Effects& effects);
  void OnExited(int64_t now_ns, WorkerExited event, Effects& effects);
  void OnMessage(WorkerMessage event, Effects& effects);
  void OnClosed(int64_t now_ns, const WorkerClosed& event, Effects& effects);
  // The coordinator has taken a report that was handed to `report`.
  void OnTaken(const v1::NodeReport& report);
  // Sets for how long this process has been stopped in all; called before every event. Silence is measured in the time
  // for which this process was awake, also that of workers yet to attach.
  void SetPauses(int64_t pauses_ns) { pauses_ns_ = pauses_ns; }
  // After every event. `full`: no further report can be kept, so no stream is read on.
  void OnTime(int64_t now_ns, bool full, Effects& effects);

  // Time at which OnTime next has something to do; the greatest time when it has not.
  int64_t next_deadline_ns() const;
  bool empty() const { return workers_.empty(); }
  // Alive at this moment (their end has not been seen).
  std::vector<v1::WorkerId> Living() const;
  int64_t LivingCount() const;
  // Fills in the living workers for the coordinator.
  void Describe(v1::AgentHello& hello) const;
  // True once the keeper has been asked what runs.
  bool listed() const { return listed_; }
  // True while a worker is attached, or has time left to attach.
  bool listens() const;

 private:
  struct Worker {
    v1::WorkerId id;
    uint64_t run = 0;                // 0: not known
    int64_t pid = 0;                 // 0: the keeper has not said that it runs
    int64_t attach_by_awake_ns = 0;  // meaningful until it has attached once
    bool has_attached = false;
    std::optional<SessionId> session;
    bool read_due = false;                    // its stream is to be read on
    bool numbers = false;                     // reports which commands it has taken; otherwise sent ones count as taken
    uint64_t last_command = 0;                // number of the latest
    std::deque<v1::AttachResponse> commands;  // not taken yet
    uint64_t relayed = 0;                     // number of its latest report that was passed on
    uint64_t reports_taken = 0;               // by the coordinator
    v1::WorkerStatus status;                  // its latest word
    std::optional<int64_t> heard_awake_ns;    // unset: something came since the last OnTime
    bool adopted = false;                     // was running when this agent began: it dials every second
    bool silence_told = false;
    std::optional<int64_t> kill_at_ns;  // set once it was told to stop
    bool killed = false;
    std::optional<WorkerExited> exited;  // its stream is still being read
    int64_t drained_by_ns = 0;
    std::optional<StartWorker> successor;

    bool Began() const { return pid != 0 || has_attached; }
    bool StopOrdered() const { return kill_at_ns.has_value() || killed; }
  };
  using Workers = std::map<int32_t, Worker>;

  using Key = std::pair<int32_t, uint64_t>;  // device, incarnation

  bool attached() const;
  bool IsOurs(const v1::WorkerId& id) const;
  void StartOne(int64_t now_ns, const StartWorker& start, Effects& effects);
  void Refuse(const v1::WorkerId& id, std::string reason, Effects& effects);
  void StopOne(int64_t now_ns, int64_t grace_ns, const v1::StopCommand& stop, Worker& worker, Effects& effects);
  void Kill(Worker& worker, Effects& effects);
  void ListRunning(int64_t now_ns, const KeeperListed::Running& running, Effects& effects);
  void ListEnded(int64_t now_ns, const v1::WorkerExit& exit, Effects& effects);
  absl::Status CheckFirstMessage(const v1::AttachRequest& message) const;
  void OnHello(const v1::AttachRequest& message, Worker& worker, Effects& effects);
  void Command(Worker& worker, v1::WorkerCommand command, Effects& effects);
  SendToWorker Addressed(const Worker& worker, v1::AttachResponse message) const;
  void Tell(const WorkerExited& exited, const Worker& worker, Effects& effects);
  void Finish(int64_t now_ns, Workers::iterator at, Effects& effects);
  void LookAt(int64_t now_ns, int64_t awake_ns, Worker& worker, Effects& effects);
  void LookForSilence(int64_t awake_ns, Worker& worker);
  int64_t AttachByAwakeNs(int64_t now_ns) const;
  int64_t DeadlineOf(const Worker& worker) const;
  // True when the worker is attached, or should be in a moment.
  static bool Speaks(const Worker& worker);
  Worker* FindByKey(const WorkerKey& key);
  Workers::iterator FindBySession(SessionId session);
  void FillIn(int32_t device, v1::PrepareCommand& prepare) const;

  const AgentConfig& config_;
  const WorkerFleetOptions options_;
  const Report report_;
  Workers workers_;                     // by device
  std::map<Key, v1::WorkerId> untold_;  // ended under the keeper, and the coordinator has not taken the report
  std::vector<WorkerKey> told_;         // taken since the last OnTime
  std::optional<int64_t> beat_at_ns_;   // unset: nobody is attached
  int64_t pauses_ns_ = 0;               // time less time awake
  bool listed_ = false;
};

}  // namespace geopipe::agent
