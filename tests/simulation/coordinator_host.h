// The coordinator's host: its store and its planner, around the real core and runner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/runner.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/node.h"
#include "tests/simulation/store_rules.h"
#include "tests/simulation/world.h"

namespace geopipe::simulation {

// The durable state, which outlives the processes. Rules are checked as it is written.
class Disk {
 public:
  Disk(World& world, StoreRules& rules) : world_(world), rules_(rules) {}

  StoredState state;
  std::vector<StoredJob> jobs;
  std::map<std::pair<std::string, std::string>, StoredLink> links;
  std::set<std::string> drained;  // sites
  uint64_t incarnation = 0;
  uint64_t highest_incarnation = 0;  // that any store has had
  bool full = false;                 // nothing can be written
  bool progress_full = false;        // progress cannot
  // A job is FAILED from now on.
  std::function<void(const std::string& job, const std::string& cause)> on_failed;
  std::function<void(const std::string& job, const std::string& cause)> on_recovering;
  std::function<void(JobState from, JobState to)> on_transition;

  StoredJob* Find(std::string_view job);
  void Record(StoredJob& job, const v1::JobRecord& record);
  void Outcome(StoredJob& job, v1::JobDetail outcome);
  StoreRules& rules() { return rules_; }
  void Append(const JobProgress& progress);
  StoredState Load() const;

 private:
  World& world_;
  StoreRules& rules_;
};

// One life of the coordinator.
class CoordinatorLife final : public JobStore,
                              public AgentStreams,
                              public ControlCalls,
                              public PlanningQueue,
                              public Clock {
 public:
  using OnReply = std::function<void(const absl::StatusOr<ControlReply>&)>;

  CoordinatorLife(World& world, Disk& disk, const DataPlane& plane, int64_t unix_offset_ns, int64_t restarts_per_hour);

  // Reads the store and begins. Ends the process when it cannot.
  void Begin();
  void Take(Event event);
  // A call of the user. `reply` is not called when the process dies before it answers.
  void Call(std::function<Event(CallId)> make, OnReply reply);

  const ProcessPtr& process() const { return process_; }
  int64_t unix_offset_ns = 0;
  bool planner_slow = false;
  std::optional<int64_t> crash_at_commit;  // so many effects after it orders one, it dies

  struct Session {
    std::shared_ptr<ControlStream> stream;
    std::function<void(v1::ConnectResponse)> send;
    std::function<void(absl::Status)> close;
  };
  std::map<SessionId, Session> sessions;
  SessionId next_session = 1;
  // Called with what the watchers are told.
  std::function<void(CallId, const std::vector<v1::WatchJobResponse>&)> on_watch;
  std::function<void(CallId)> on_watch_end;
  CallId next_call = 1;

  // --- JobStore ---
  absl::StatusOr<StoredState> Load() override { return disk_.Load(); }
  absl::StatusOr<uint64_t> NextIncarnation(int64_t now_unix_ns) override;
  absl::Status InsertJob(const v1::JobDetail& detail, const v1::JobRecord& record, std::string_view forget,
                         int64_t keep_below, std::string_view keep_as) override;
  absl::Status AddTransition(std::string_view job, int64_t sequence, const v1::JobTransition& transition,
                             const v1::JobDetail* outcome, const v1::JobRecord* record,
                             const JobProgress* progress) override;
  absl::Status SetRecord(std::string_view job, const v1::JobRecord& record, const v1::JobDetail* outcome) override;
  absl::Status AddProgress(const std::vector<JobProgress>& progress, const std::vector<StoredLink>& links) override;
  absl::StatusOr<std::vector<v1::IterationSummary>> LoadIterations(std::string_view job) override;
  absl::StatusOr<std::vector<v1::IterationTimeline>> LoadTimelines(std::string_view job) override;
  absl::Status SetDrained(std::string_view site, bool drained) override;
  absl::StatusOr<std::string> Backup(int64_t /*now_unix_ns*/) override { return absl::UnimplementedError("not here"); }
  // --- AgentStreams ---
  void Send(SessionId session, v1::ConnectResponse message) override;
  void Close(SessionId session, const absl::Status& status) override;
  // --- ControlCalls ---
  void Reply(CallId call, absl::StatusOr<ControlReply> reply) override;
  void SendToWatcher(CallId call, std::vector<v1::WatchJobResponse> messages) override;
  void EndWatch(CallId call, const absl::Status& status) override;
  // --- PlanningQueue ---
  void Start(StartPlanning request) override;
  void Stop(const StopPlanning& request) override;
  // --- Clock ---
  int64_t NowNs() const override { return world_.now_ns(); }
  int64_t UnixNowNs() const override { return world_.now_ns() + unix_offset_ns; }
  void SleepUntilNs(int64_t /*monotonic_ns*/) override {}

 private:
  void Effect() { process_->BeforeEffect(); }
  void Tick();
  void PlanNext();
  void CheckCommand(const v1::RelayedCommand& command);
  void CheckProbe(const v1::ProbeLink& order);

  World& world_;
  Disk& disk_;
  const DataPlane& plane_;  // what the planner predicts
  const int64_t restarts_per_hour_;
  const ProcessPtr process_;
  Inbox<Event> inbox_{16};
  EventPort<Event> port_{inbox_};
  std::unique_ptr<Runner> runner_;
  std::map<CallId, OnReply> calls_;
  std::vector<StartPlanning> plans_;
  bool planning_ = false;
};

}  // namespace geopipe::simulation
