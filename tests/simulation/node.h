// A node: its disk, its keeper, its agent and its workers, each the real core with its effects carried out here. What
// starts them again when they have died is not here (simulation.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "agent/keeper_core.h"
#include "runtime/worker/worker_control.h"
#include "tests/simulation/checkpoint_disk.h"
#include "tests/simulation/control_stream.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class Node;

inline constexpr int64_t kLocalNs = kMillisecondNs;  // between two processes of a node

// One worker process.
class Worker {
 public:
  Worker(Node& node, const v1::WorkerId& id, int64_t pid, std::shared_ptr<KeptMemory> memory);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Executes the program; before that the process waits for its keeper.
  void Begin();
  void Take(WorkerEvent event);

  const v1::WorkerId& id() const { return id_; }
  int64_t pid() const { return pid_; }
  const ProcessPtr& process() const { return process_; }
  Trainer& trainer() { return trainer_; }
  bool begun() const { return begun_; }
  int32_t exit_code() const { return exit_code_; }
  bool killed() const { return killed_; }
  v1::WorkerStatus status() const { return control_.status(); }
  // No agent can be found any more, since then; 0: one can.
  int64_t stray_ns() const { return stray_ns_; }
  void Kill();

 private:
  friend class Node;
  void Look();
  void Tick();
  void Carry(DialAgent& effect);
  void Carry(geopipe::HangUp& effect);
  void Carry(TellAgent& effect);
  void Carry(RunProfile& effect) { trainer_.Run(std::move(effect)); }
  void Carry(RunPrepare& effect) { trainer_.Run(std::move(effect)); }
  void Carry(RunCommit& effect) { trainer_.Run(std::move(effect)); }
  void Carry(RunCheckpoint& effect) { trainer_.Run(effect); }
  void Carry(RequestCheckpoint& effect) { trainer_.Request(effect.iteration); }
  void Carry(CompleteCheckpoint& effect) { trainer_.Complete(std::move(effect)); }
  void Carry(FetchReplica& effect) { trainer_.Replicate(std::move(effect)); }
  void Carry(EndTraining& effect) { trainer_.End(effect.abandon_from); }
  void Carry(InterruptTrainer& /*effect*/) { trainer_.Interrupt(); }
  void Carry(EnterEpoch& /*effect*/) {}
  void Carry(WorkerLog& effect);
  void Carry(ExitWorker& effect);

  Node& node_;
  World& world_;
  const v1::WorkerId id_;
  const int64_t pid_;
  const ProcessPtr process_;
  WorkerControl control_;
  Trainer trainer_;
  bool begun_ = false;
  int64_t look_ns_ = 0;  // when Look is called next
  int32_t exit_code_ = 0;
  bool killed_ = false;
  int64_t stray_ns_ = 0;
  int64_t told_ns_ = 0;  // when its agent, which is gone, has registered with the coordinator of then
};

// A worker's stream to an agent.
struct Attachment {
  agent::SessionId session = 0;
  AgentStreamId stream = 0;
  std::weak_ptr<Worker> worker;
  std::deque<v1::AttachRequest> unread;
  bool read_on = true;  // the agent takes the next message
  bool ended = false;
};

// One life of an agent.
struct AgentLife {
  AgentLife(const agent::AgentConfig& config, const agent::AgentOptions& options) : core(config, options) {}

  ProcessPtr process = std::make_shared<Process>();
  agent::Agent core;
  uint64_t keeper_connection = 0;  // 0: none
  std::optional<agent::KeeperListed> list;
  bool is_told = false;            // the keeper of this connection was told to end
  bool leaves = false;             // the agent was told that the node goes down
  int64_t no_keeper_until_ns = 0;  // none is started before, since one was told to end
  std::map<agent::SessionId, std::shared_ptr<Attachment>> attachments;
  std::shared_ptr<ControlStream> stream;
  agent::ConnectionId connection = 0;
  int64_t look_ns = 0;
};

struct KeeperLife {
  KeeperLife(int64_t now_ns, const v1::KeeperTable& table) : core(now_ns, {}, table) {}

  ProcessPtr process = std::make_shared<Process>();
  agent::KeeperCore core;
  std::deque<agent::KeeperEvent> events;
  agent::KeeperConnection agent = 0;                      // the latest
  std::map<int32_t, std::shared_ptr<KeptMemory>> memory;  // by device
};

// The coordinator's side of a new stream.
class Listener {
 public:
  virtual ~Listener() = default;
  // The process that listens; nullptr: none does.
  virtual ProcessPtr listening() const = 0;
  // Start of the latest such process.
  virtual int64_t started_ns() const = 0;
  // Accepts the stream in the coordinator's process. `send_down`, `close`: the stream's other end.
  virtual void Accept(const std::shared_ptr<ControlStream>& stream, v1::ConnectRequest hello,
                      std::function<void(v1::ConnectResponse)> send_down, std::function<void(absl::Status)> close) = 0;
  // A later message of the stream.
  virtual void Hear(const ControlStream* stream, v1::ConnectRequest message) = 0;
  virtual void Closed(const ControlStream* stream) = 0;
};

class Node {
 public:
  Node(World& world, DataPlane& plane, Ledger& ledger, Listener& coordinator, std::string site,
       const std::vector<std::string>& sites, int32_t devices);

  // A new life of the agent; none may be alive.
  void StartAgent();
  void Reboot();
  // Tells the keeper, if there is one, that the node goes down.
  void Leave();
  // The same as Reboot, and its disks are empty when it is back.
  void Replace();
  // The agent dies, and its state folder is gone: workers live on, and nobody who comes later knows of them.
  void LoseState();

  const std::string& site() const { return config_.site; }
  const std::shared_ptr<AgentLife>& agent() const { return agent_; }
  const std::shared_ptr<KeeperLife>& keeper() const { return keeper_; }
  const std::map<int64_t, std::shared_ptr<Worker>>& workers() const { return workers_; }
  const std::vector<std::shared_ptr<Worker>>& strays() const { return strays_; }
  Path& path() { return path_; }
  // Healed, so that new streams come about.
  void HealPath();
  bool disk_full = false;  // that of the keeper's table
  bool starts_fail = false;
  CheckpointDisk& checkpoints() { return checkpoints_; }
  int64_t deadly_until_ns = 0;  // each worker dies soon after its start

  // False when nobody hears of the node, or it cannot act.
  bool reachable() const {
    return agent_ != nullptr && agent_->process->alive && !agent_->process->paused && !path_.disturbed();
  }

 private:
  friend class Worker;
  // --- Agent ---
  void Take(const std::shared_ptr<AgentLife>& life, agent::Event event);
  void Look(const std::shared_ptr<AgentLife>& life);
  void Carry(AgentLife& life, agent::Dial& effect);
  void Carry(AgentLife& life, agent::HangUp& effect);
  void Carry(AgentLife& life, agent::SendToCoordinator& effect);
  void Carry(AgentLife& life, agent::StartWorker& effect);
  void Carry(AgentLife& life, agent::SignalWorker& effect);
  void Carry(AgentLife& life, agent::ForgetExit& effect);
  void Carry(AgentLife& life, agent::AcceptSession& effect);
  void Carry(AgentLife& life, agent::ReadOn& effect);
  void Carry(AgentLife& life, agent::SendToWorker& effect);
  void Carry(AgentLife& life, agent::CloseSession& effect);
  void Carry(AgentLife& life, agent::StartProbe& effect);
  static void Carry(AgentLife& life, agent::StopProbe& effect);
  void Carry(AgentLife& life, agent::RememberCoordinator& effect);
  static void Carry(AgentLife& life, agent::Announce& effect);
  void Carry(AgentLife& life, agent::WriteLog& effect);
  void Carry(AgentLife& life, agent::Exit& effect);
  void OnAgentDeath(AgentLife& life);
  void Read(const std::shared_ptr<AgentLife>& life, const std::shared_ptr<Attachment>& attachment);
  void EndAttachment(const std::shared_ptr<Attachment>& attachment, const absl::Status& status);
  void Ask(AgentLife& life, v1::KeeperRequest request);
  void OnNews(const std::shared_ptr<AgentLife>& life, v1::KeeperNews news);
  void FindKeeper(const std::shared_ptr<AgentLife>& life);

  // --- Keeper ---
  void StartKeeper();
  void Take(const std::shared_ptr<KeeperLife>& life, agent::KeeperEvent event);
  void Look(const std::shared_ptr<KeeperLife>& life);
  void Carry(KeeperLife& life, agent::Spawn& effect);
  void Carry(KeeperLife& life, agent::ReleaseChild& effect);
  void Carry(KeeperLife& life, agent::SignalChild& effect);
  void Carry(KeeperLife& life, agent::TakeMemory& effect);
  void Carry(KeeperLife& life, agent::DropMemory& effect);
  static void Carry(KeeperLife& /*life*/, agent::DropProgram& /*effect*/) {}  // nobody upgrades anything
  // Drops what only the keeper held, which is gone with it.
  void LoseMemory(const KeeperLife& life);
  void Carry(KeeperLife& life, agent::TellAgent& effect);
  void Carry(KeeperLife& life, agent::SaveTable& effect);
  void Carry(KeeperLife& life, agent::WriteLog& effect);
  void Carry(KeeperLife& life, agent::LeaveKeeper& effect);
  void OnWorkerDeath(Worker& worker);
  void ExcuseNotBegun();

  // nullptr: none lives.
  std::shared_ptr<Worker> FindWorker(int32_t device, uint64_t incarnation);

  World& world_;
  DataPlane& plane_;
  Ledger& ledger_;
  Listener& coordinator_;
  agent::AgentConfig config_;
  Path path_;
  std::shared_ptr<AgentLife> agent_;
  std::shared_ptr<KeeperLife> keeper_;
  std::map<int64_t, std::shared_ptr<Worker>> workers_;  // by pid; alive, or dead and not reaped yet
  std::vector<std::shared_ptr<Worker>> strays_;
  // Jobs of workers that died before their release, though the table named them; the agent has not got the list since.
  std::set<std::string> not_begun_;
  int64_t next_pid_ = 100;
  uint64_t next_session_ = 1;
  uint64_t next_keeper_connection_ = 1;
  uint64_t boot_ = 1;
  // The disk.
  CheckpointDisk checkpoints_;
  v1::KeeperTable table_;
  uint64_t table_boot_ = 1;
  bool table_is_stale_ = false;  // the keeper could not write what it knows
  uint64_t known_coordinator_ = 0;
  int64_t registered_ns_ = 0;  // with that one, first
  std::string federation_;
};

}  // namespace geopipe::simulation
