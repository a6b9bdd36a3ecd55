// The keeper's core: owns the workers that run, the memory that they keep their states in, the programs that they
// execute and the exits that no coordinator has taken yet, and serves one agent at a time. One function, Step(now,
// event) -> effects; it starts no process and opens no socket (agent/keeper.h does).
//
// What holds (tests/agent/keeper_core_test.cc):
//   - at most one worker runs per device;
//   - an agent that connects hears of every worker that was started: it runs, or it has ended and is not forgotten;
//   - what an agent hears is in the table of the state folder, so that the next keeper knows it, too;
//   - no worker executes its program before it is in the table, so that a keeper that is killed leaves none that the
//     next one does not know, and would start again beside it. Where the table cannot be written no worker starts;
//   - a worker that ends otherwise than by itself with code 0 leaves its memory to the next one of the same job on its
//     device, for some time; one of another job never sees it;
//   - memory of an ended worker is also held by the agent, and comes back with it to a keeper that has lost it;
//   - all workers of a run execute the file that the first of them executed, as long as one of them runs here and for
//     some time after the last; a worker of another run never executes it for that. A keeper that follows another has
//     it of a worker that runs;
//   - a program with which no worker of its run came up is not kept: it may be mended;
//   - a keeper leaves when nobody needs it: it keeps nothing; or it keeps exits alone, which the next keeper finds in
//     the table, and no agent has asked for long; or its folder is gone, and nothing runs;
//   - a keeper that is told to end, as its node goes down, starts nothing any more; it ends when its workers have, or
//   ends
//     them when its time is over;
//   - no request ends the keeper: what does not fit is logged and passed over.
#pragma once

#include <absl/status/status.h>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/events.h"
#include "geopipe/v1/keeper.pb.h"

namespace geopipe::agent {

// One connection of an agent, counted from 1.
using KeeperConnection = uint64_t;

// One run of a job. Its workers execute one program.
struct RunKey {
  std::string job;
  uint64_t incarnation = 0;  // 0: the agent has not told it, and nothing is kept for it

  friend auto operator<=>(const RunKey&, const RunKey&) = default;
};

// --- Events -----------------------------------------------------------------------------------------------------

// Takes over from an earlier connection, whose requests no longer count.
struct AgentConnected {
  KeeperConnection connection = 0;
};

struct AgentAsked {
  KeeperConnection connection = 0;
  v1::KeeperRequest request;
};

struct AgentLeft {
  KeeperConnection connection = 0;
};

// Answers Spawn: the process waits for its release.
struct ChildStarted {
  v1::KeptWorker child;
};
// Answers ReleaseChild: it executes its program.
struct ChildReleased {
  WorkerKey worker;
};
// Answers either: there is no process (any more).
struct ChildFailed {
  v1::WorkerId worker;
  absl::Status status;
};

// Answers no effect: the memory in which a worker of an earlier keeper holds its states could not be taken over.
struct MemoryLost {
  WorkerKey worker;
};

// Answers TakeMemory.
struct MemoryGone {
  int32_t device = 0;
};

// Comes when the program of the run could not be opened or, at the start of a keeper, taken over.
struct ProgramLost {
  RunKey run;
};

struct ChildEnded {
  WorkerKey worker;
  int32_t exit_code = 0;  // -1 with signal 0: not known
  int32_t signal = 0;
  std::string last_words;
};

// The state folder was looked for: false when it is not there, or is another one.
struct FolderSeen {
  bool is_there = true;
};

// Somebody wants the process to end: the node goes down.
struct ToldToLeave {};

// Answers LeaveKeeper: the table could not be written.
struct MustStay {};

using KeeperEvent =
    std::variant<AgentConnected, AgentAsked, AgentLeft, ChildStarted, ChildReleased, ChildFailed, MemoryLost,
                 MemoryGone, ProgramLost, ChildEnded, FolderSeen, ToldToLeave, MustStay, Tick>;

// --- Effects, carried out strictly in order -----------------------------------------------------------------------

// Starts a process that waits for its release, and ends without it when the keeper does. Answered by ChildStarted or
// ChildFailed before any other event. A program that takes memory gets that which is held of its device, or where
// `hands_memory_on` is false new memory, which is let go of when there is no process in the end.
struct Spawn {
  enum class Program : uint8_t {
    kInstalled,  // the file that the order names
    kOpened,     // the same, and it is kept open for the run
    kKept,       // the file that is kept open for the run
  };
  v1::KeeperStart start;
  bool hands_memory_on = false;
  Program program = Program::kInstalled;
};

// Answered by ChildReleased, or by ChildFailed where it cannot execute or the table was not saved, when the tables
// before it are written. A child that ends before is not answered for.
struct ReleaseChild {
  WorkerKey worker;
};

struct SignalChild {
  WorkerKey worker;
  int signal = 0;
};

// Takes the memory of a device over from the agent, which has it under this number. Answered by MemoryGone where that
// fails.
struct TakeMemory {
  int32_t device = 0;
  int32_t fd = 0;
};

// Releases the memory that is held of a device, if any.
struct DropMemory {
  int32_t device = 0;
};

// Closes the program that is kept open for a run, if any.
struct DropProgram {
  RunKey run;
};

struct TellAgent {
  KeeperConnection connection = 0;
  v1::KeeperNews news;
};

// Writes the table, while everything else goes on: a disk may be slow. What the agent is told after it, it is told when
// the table is written, or cannot be.
struct SaveTable {
  v1::KeeperTable table;  // without the boot's id
};

// Ends the keeper, when the tables before it are written. kNobodyAsks is answered by MustStay where they could not be.
struct LeaveKeeper {
  enum class Reason : uint8_t { kNothingKept, kNobodyAsks, kNoFolder, kToldTo };
  Reason reason = Reason::kNothingKept;
};

using KeeperEffect = std::variant<Spawn, ReleaseChild, SignalChild, TakeMemory, DropMemory, DropProgram, TellAgent,
                                  SaveTable, WriteLog, LeaveKeeper>;
using KeeperEffects = std::vector<KeeperEffect>;

struct KeeperCoreOptions {
  // Time without worker, exit, memory and agent after which the keeper ends.
  int64_t idle_ns = int64_t{60} * 1'000'000'000;
  // The same where exits are left that no coordinator has taken.
  int64_t rest_ns = int64_t{600} * 1'000'000'000;
  // Time for which the memory of a worker that has ended is held.
  int64_t kept_memory_ns = int64_t{3600} * 1'000'000'000;
  // Time for which the program of a run is kept open after the end of the last of its workers here. It is closed sooner
  // when workers of other runs have taken all devices that these had.
  int64_t kept_program_ns = int64_t{3600} * 1'000'000'000;
  // A worker that ends by itself with an error sooner than this has not shown that its program works.
  int64_t proving_ns = int64_t{10} * 1'000'000'000;
  // Limit on programs kept open. At it, that of the run whose workers ended first is closed; where all have workers,
  // those of a further run execute what is installed.
  size_t max_programs = 64;
  // Time from ToldToLeave to the end of the workers that still run, and from there to that of those that still do.
  int64_t leave_grace_ns = int64_t{90} * 1'000'000'000;
  int64_t kill_grace_ns = int64_t{5} * 1'000'000'000;
  size_t max_running = 1024;
  size_t max_ended = 4096;  // limit on exits not yet forgotten; at it, no worker is started
};

class KeeperCore {
 public:
  // `table`: left by an earlier keeper. Workers in it that no longer run end by ChildEnded.
  KeeperCore(int64_t now_ns, const KeeperCoreOptions& options, const v1::KeeperTable& table);

  // Time never goes back. Call with Tick at the latest at next_deadline_ns().
  KeeperEffects Step(int64_t now_ns, KeeperEvent event);

  // Returns the greatest time when there is nothing to wait for.
  int64_t next_deadline_ns() const;
  // Running workers by device.
  const std::map<int32_t, v1::KeptWorker>& running() const { return running_; }
  // Runs whose program is kept open.
  std::vector<RunKey> programs() const;

 private:
  using Key = std::pair<int32_t, uint64_t>;  // device, incarnation

  // Memory that an ended worker has left.
  struct LeftMemory {
    std::string job;
    int64_t until_ns = 0;
  };

  // The program of a run.
  struct KeptProgram {
    std::set<int32_t> devices = {};                  // whose latest worker was of the run
    bool works = false;                              // some worker has come up with it
    std::optional<int64_t> until_ns = std::nullopt;  // unset: a worker of the run is there
  };

  void OnConnected(int64_t now_ns, KeeperConnection connection, KeeperEffects& effects);
  void OnAsked(int64_t now_ns, AgentAsked event, KeeperEffects& effects);
  void OnStart(v1::KeeperStart start, KeeperEffects& effects);
  Spawn::Program ProgramFor(const RunKey& run, int32_t device, KeeperEffects& effects);
  bool MakeRoomForProgram(KeeperEffects& effects);
  void DropProgramOf(const RunKey& run, KeeperEffects& effects);
  // A worker of the run is no more; `worked`: it had come up. The program goes with the last one if none had.
  void LeaveProgram(int64_t now_ns, const RunKey& run, bool worked, KeeperEffects& effects);
  absl::Status CheckStart(const v1::KeeperStart& start) const;
  void OnSignal(const v1::KeeperSignal& signal, KeeperEffects& effects) const;
  void OnHeld(int64_t now_ns, const v1::KeeperHeld& held, KeeperEffects& effects);
  void OnStarted(ChildStarted event, KeeperEffects& effects);
  void OnFailed(int64_t now_ns, const ChildFailed& event, KeeperEffects& effects);
  void OnReleased(int64_t now_ns, const ChildReleased& event, KeeperEffects& effects);
  void OnMemoryLost(const MemoryLost& event);
  void OnEnded(int64_t now_ns, ChildEnded event, KeeperEffects& effects);
  void OnTick(int64_t now_ns, KeeperEffects& effects);
  void OnToldToLeave(int64_t now_ns, KeeperEffects& effects);
  void TellLeaving(int64_t now_ns, KeeperEffects& effects) const;
  // Ends the workers when the time of a keeper that was told to end is over.
  void EndWorkers(int64_t now_ns, KeeperEffects& effects);
  void Tell(v1::KeeperNews news, KeeperEffects& effects) const;
  void Fail(const v1::WorkerId& worker, const absl::Status& status, KeeperEffects& effects) const;
  void Save(KeeperEffects& effects) const;
  void LeaveIfUnneeded(int64_t now_ns, KeeperEffects& effects);
  // True when nobody asks, and nothing is kept that is not in the table.
  bool rests() const { return !agent_.has_value() && running_.empty() && memory_.empty(); }
  int64_t patience_ns() const { return ended_.empty() ? options_.idle_ns : options_.rest_ns; }

  const KeeperCoreOptions options_;
  std::map<int32_t, v1::KeptWorker> running_;  // by device; pid 0: there is no process yet
  std::set<int32_t> waiting_;                  // devices of those that wait for their release
  std::map<Key, v1::WorkerExit> ended_;
  std::map<int32_t, LeftMemory> memory_;  // by device; what a worker that runs has is not in it
  std::map<RunKey, KeptProgram> programs_;
  std::map<int32_t, int64_t> released_ns_;  // by device, of the workers that this keeper has released
  std::optional<KeeperConnection> agent_;
  int64_t busy_until_ns_;  // it rests since then
  bool has_folder_ = true;
  std::optional<int64_t> end_workers_ns_;  // set: it was told to end
  int end_signal_ = 0;                     // the workers were sent this since; 0: none
  bool left_ = false;
};

}  // namespace geopipe::agent
