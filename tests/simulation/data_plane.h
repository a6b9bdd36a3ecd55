// The workers' data plane and their trainers: ranks that connect, prove that they belong together, and finish an
// iteration only when all of them take part in it. States are written to the disks of nodes, and read from there.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "runtime/worker/worker_events.h"
#include "tests/simulation/checkpoint_disk.h"
#include "tests/simulation/checkpointer.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

class DataPlane;

// A state of a rank: its name, and what it came from, which stands for its bits.
struct RankState {
  StateIdentity identity;
  uint64_t lineage = 0;
};

// Memory that the node's keeper holds: the last two states of a rank.
struct KeptMemory {
  uint64_t run = 0;
  int32_t rank = 0;
  std::deque<RankState> states;  // newest first
};

// Stands in for a worker's trainer thread.
class Trainer {
 public:
  // Answers are posted to `post`, in the process.
  Trainer(World& world, DataPlane& plane, ProcessPtr process, v1::WorkerId worker, std::shared_ptr<KeptMemory> memory,
          CheckpointDisk& disk, std::function<void(WorkerEvent)> post);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();

  void Run(RunProfile order);
  void Run(RunPrepare order);
  void Run(RunCommit order);
  void Run(RunCheckpoint order);
  void Request(int64_t iteration) { requested_.insert(iteration); }
  std::vector<int64_t> TakeRequests(int64_t last = std::numeric_limits<int64_t>::max());
  void Complete(CompleteCheckpoint order);
  void Replicate(FetchReplica order);
  void End(std::optional<int64_t> abandon_from);
  void Interrupt();
  WorkerTick Progress() const;

  // Makes the action under way never end.
  void GetStuck();
  uint64_t run() const { return run_; }  // that it has prepared last; 0: none
  const std::string& address() const { return address_; }
  const std::shared_ptr<KeptMemory>& memory() const { return memory_; }

 private:
  friend class DataPlane;
  // One epoch, from commit to its end.
  struct Session {
    Trainer* trainer = nullptr;
    uint64_t epoch = 0;
    int32_t rank = 0;
    std::vector<std::string> peers;  // addresses, by rank
    std::string secret;
    int64_t start = 0;
    int64_t end = 0;
    int64_t evaluate_from = 0;
    Session* left = nullptr;
    Session* right = nullptr;
    int64_t alone_since_ns = 0;  // a neighbour is missing
    bool connected = false;
    bool begun = false;    // the iteration next_
    bool assured = false;  // all that it needs of the others is there
    int64_t begun_ns = 0;
    int64_t finish_ns = 0;
    bool ending = false;
    std::optional<int64_t> abandon_from;
  };
  void Answer(int64_t delay_ns, WorkerEvent event);
  void Return(const absl::Status& status);
  // The state of a checkpoint is there, or not to be had.
  void OnRestored(const RunPrepare& order, const absl::StatusOr<uint64_t>& lineage);
  void TakeMemory(const v1::PrepareCommand& command);
  CheckpointMark MarkOf(const std::string& path, const v1::CheckpointMark& message) const;
  v1::PreparedReport Report();
  void Keep();
  // Handles the held state, that before next(): writes it when that is due.
  void OnState();
  absl::Status Save();
  Checkpointer::Context ContextOf(uint64_t epoch) const;
  // The disk of the worker at the address; nullptr: it cannot be asked.
  const CheckpointDisk* FindServer(const std::string& address) const;
  RunStates States() const;
  int64_t next() const { return held_.has_value() ? held_->identity.iteration : 0; }
  bool runs() const { return process_->alive && !process_->paused && !stuck_; }

  World& world_;
  DataPlane& plane_;
  const ProcessPtr process_;
  const v1::WorkerId worker_;
  const std::function<void(WorkerEvent)> post_;
  const std::string address_;  // of the device: the next worker on it has the same
  bool busy_ = false;          // an order is not answered
  bool interrupted_ = false;
  bool stuck_ = false;
  int64_t stuck_ns_ = 0;
  uint64_t run_ = 0;
  std::optional<RankState> held_;
  bool receives_ = false;  // a replica gives it the state of the epoch's beginning
  int32_t giver_ = 0;      // that one's rank
  const std::shared_ptr<KeptMemory> memory_;
  int32_t rank_ = 0;
  int32_t ranks_ = 1;
  int64_t sequence_length_ = 0;
  uint64_t epoch_ = 0;           // that it has prepared last
  CheckpointSpec spec_;          // of the job
  CheckpointMark mark_;          // of its folder
  EvaluationSpec evaluation_;    // of the job
  std::string exchange_secret_;  // empty: it serves no files
  CheckpointDisk& disk_;
  Checkpointer checkpointer_;
  std::set<int64_t> requested_;  // checkpoints before these iterations
  std::unique_ptr<Session> session_;
};

class DataPlane {
 public:
  DataPlane(World& world, Ledger& ledger) : world_(world), ledger_(ledger) {}

  // Called now and then: everything that may happen does.
  void Poll();
  static constexpr int64_t kPollNs = 50 * kMillisecondNs;

  // Cuts or restores the links between a site and the others.
  void Cut(const std::string& site, bool cut) { cut_[site] = cut; }
  // Duration of an iteration of the job, as the planner knows it.
  int64_t iteration_ns(const std::string& job) const { return iterations_ns_.at(job); }
  // Time that a worker of the job lives without an agent and without a finished iteration; one more is for an
  // evaluation.
  int64_t GraceOf(const std::string& job) const { return std::max(30 * kSecondNs, 11 * iteration_ns(job)); }
  void SetIteration(const std::string& job, int64_t iteration_ns) { iterations_ns_[job] = iteration_ns; }
  // Makes the job's ranks keep their states in memory.
  void SetKeeps(const std::string& job) { keeps_.insert(job); }
  bool keeps(const std::string& job) const { return keeps_.contains(job); }
  // The job of the manifest, as it travels.
  const JobSpec& JobOf(const std::string& manifest);
  // True when a worker of the job that lives and is not paused is stuck in an iteration that it was told to abandon.
  bool AbandonsInVain(const std::string& job) const;

 private:
  friend class Trainer;
  using Session = Trainer::Session;
  void PollOne(Session& session);
  // Reports the evaluation before iteration next() of the last rank, in which all ranks have taken part.
  void ReportEvaluation(const Session& session);
  void Connect(Session& session);
  // The rank gets its state of the replica that gives it. False: it is not connected with that one yet.
  static bool Receive(Session& session);
  Session* ListenerAt(const Session& dialer, const std::string& address);
  bool Proven(const Session& dialer, const Session& listener);
  // All ranks take part in the iteration, and it has taken long enough.
  void Assure(Session& first);
  void Unlink(Session& session);
  bool Passes(const Session& a, const Session& b) const;
  bool Passes(const std::string& x, const std::string& y) const;  // sites
  bool IsCut(const std::string& site) const {
    const auto found = cut_.find(site);
    return found != cut_.end() && found->second;
  }

  World& world_;
  Ledger& ledger_;
  std::list<Trainer*> trainers_;
  std::list<Session*> sessions_;
  std::map<std::string, bool> cut_;
  std::map<std::string, int64_t> iterations_ns_;
  std::set<std::string> keeps_;
  std::map<std::string, JobSpec> jobs_;  // by manifest
};

}  // namespace geopipe::simulation
