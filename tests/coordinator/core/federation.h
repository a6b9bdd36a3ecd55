// A federation without processes: the core driven by hand, with agents and workers that answer as real ones do. It
// checks the core's rules on every effect.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/core/coordinator.h"

namespace geopipe {

// Memory of a node beside its devices' own.
inline constexpr int64_t kHostBytesPerDevice = int64_t{5} << 30;

// The node that "<site>" or "<site>/<node>" stands for, and back.
NodeKey NodeNamed(const std::string& name);
std::string NameOf(const NodeKey& node);

class Federation {
 public:
  explicit Federation(CoordinatorOptions options = DefaultOptions(), StoredState stored = {});

  // Options without probes of links (ProbingOptions has them), under which a lost worker ends its job
  // (RecoveringOptions recovers).
  static CoordinatorOptions DefaultOptions();
  static CoordinatorOptions RecoveringOptions();
  static CoordinatorOptions ProbingOptions();
  // Three iterations of a tiny model at `sites`, (b, s) in {1, 2} x {64}.
  static JobSpec TinyJob(std::vector<std::string> sites = {"north", "east", "west"});
  // A plan with one stage on device 0 of node 0 of each of the job's sites. `iteration_ns`: that it predicts.
  static PlanResult PlanFor(const PlanningInput& input, int64_t iteration_ns = 1000);
  static constexpr const char* kVersion = "1.2.3";
  static constexpr uint64_t kRun = 1001;  // of the first job of DefaultOptions

  // The state that a coordinator started now would find in the store.
  StoredState Stored() const;

  // --- Time and events; all keep the effects in `last`. ---
  const Effects& Step(Event event);
  void Advance(int64_t ns) { now_ns_ += ns; }
  int64_t now_ns() const { return now_ns_; }
  // Advances in steps of 100 ms; connected agents send heartbeats.
  void RunFor(int64_t ns);

  // --- Agents ---
  // A site's name stands for its node n0; "<site>/<node>" for another one.
  // Registers the node with one device, 20 ms links to all other sites of the tiny job, and returns its session.
  SessionId Register(const std::string& name, uint64_t incarnation = 1, const std::vector<v1::WorkerId>& workers = {},
                     int32_t devices = 1, const std::vector<v1::WorkerState>& states = {});
  void Heartbeat(SessionId session);
  void Close(SessionId session);
  void Report(const WorkerKey& worker, v1::WorkerReport report);
  void Exit(const WorkerKey& worker, int signal, int code = 0, const std::string& last_words = "");
  // The agent cannot start the worker that was ordered last.
  void FailStart(const WorkerKey& worker, const std::string& why);
  v1::WorkerId IdOf(const WorkerKey& worker) const;
  // One more report of the message, with its agent's next number.
  v1::NodeReport& AddReport(AgentMessage& event);

  // --- Probes ---
  void ReportProbe(const std::string& name, v1::ProbeReport report);
  // The end that waits is ready; the one that dials has measured these.
  void OpenProbe();
  void MeasureProbe(int64_t latency_ns = 21'000'000, double outbound_bytes_per_s = 1.2e8,
                    double inbound_bytes_per_s = 1.1e8);
  void FailProbe();
  // Both, for all probes that follow on each other.
  void AnswerProbes();

  // --- Answers of the workers of job "tiny" at sites' "n0/0" ---
  void HelloAll();
  void ProfileAll();
  void ProfileMessages();  // where the costs of computing are given
  void PlanNow();
  void PrepareAll();
  void CommitAll();
  void IterateAll(int64_t iteration);
  void FinishAll();
  // The life of a job up to the state named.
  void DriveTo(JobState state);
  void Answer(const std::string& name, v1::WorkerReport report) {
    const NodeKey node = NodeNamed(name);
    Report({node.site, node.node, 0}, std::move(report));
  }

  // --- What came of it ---
  JobState StateOf(const std::string& job);
  std::string CauseOf(const std::string& job);
  v1::JobDetail DetailOf(const std::string& job);
  template <class T>
  std::vector<T> Last() const {
    std::vector<T> found;
    for (const Effect& effect : last) {
      if (const T* each = std::get_if<T>(&effect); each != nullptr) {
        found.push_back(*each);
      }
    }
    return found;
  }
  // Messages of one kind sent since the last Step but `DriveTo` and the like keep their own.
  int Commands(v1::WorkerCommand::CommandCase kind) const;
  int Stops() const;

  std::map<NodeKey, int64_t> leaving;  // nodes that go down, and within which time, as their heartbeats tell
  Effects last;
  std::unique_ptr<Coordinator> owned;
  Coordinator& core = *owned;
  std::map<std::string, SessionId> sessions;  // by the node's name
  std::map<std::string, std::vector<JobState>> persisted;
  std::map<std::string, int64_t> finished;  // iterations, per job
  std::map<JobState, int> reached;          // how often each state was persisted
  std::set<SessionId> open;
  CallId next_call = 1;
  uint64_t next_report = 0;  // number of the latest one
  std::vector<std::string> sites{"north", "east", "west"};
  JobSpec job = TinyJob();                    // that DriveTo applies
  RunOptions run;                             // with these
  std::vector<v1::CheckpointIdentity> found;  // by all workers, when they profile
  bool shaped = true;                         // the links of those who register
  bool one_host = false;                      // they are all on
  std::optional<v1::NetworkSpec> network;     // of their sites, shaped; none
  int64_t orphan_grace_ns = 0;                // that they tell
  std::string known_federation;               // that they have obeyed
  std::string no_cuda;                        // why they refuse that backend; empty: they do not
  int64_t iteration_ns = 1000;                // of plans
  bool refuses_jobs = false;                  // the store does: PersistFailed follows
  std::vector<StartPlanning> planning;        // not yet answered
  std::string broken;                         // the first rule that was broken; empty: none
  // The probe under way, and who waits and dials (empty: not yet ordered to).
  struct ProbeUnderWay {
    uint64_t probe = 0;
    std::string waiter;
    std::string dialer;
    SessionId waiter_session = 0;
    SessionId dialer_session = 0;
  };
  std::optional<ProbeUnderWay> probe;
  int probes = 0;  // begun so far

 private:
  void CheckFinished(const IterationsFinished& event);
  void Store(const Effect& effect);
  void Store(const JobProgress& progress);
  void CheckRules(const Effect& effect);
  void CheckOrder(const SendToAgent& send);
  void CheckProbe(const SendToAgent& send);
  bool UnderWay(const ProbeUnderWay& each);

  int64_t now_ns_ = 1'000'000'000;
  SessionId next_session_ = 1;
  std::map<SessionId, NodeKey> node_of_;
  std::map<SessionId, uint64_t> agent_incarnation_;
  std::map<std::pair<NodeKey, uint64_t>, uint64_t> reports_of_;                 // of each agent process
  std::map<std::pair<std::string, WorkerKey>, uint64_t> incarnation_;           // by job and worker
  std::map<std::tuple<std::string, WorkerKey, uint64_t>, uint64_t> committed_;  // the latest epoch, by worker
  std::map<std::pair<NodeKey, uint64_t>, uint64_t> orders_sent_;                // by agent process: the highest number
  uint64_t epoch_ = 1;
  std::string order_to_dial_;  // the site that may be ordered to dial
  std::vector<StoredJob> stored_;
  std::set<std::string> drained_;
  std::map<std::pair<std::string, std::string>, StoredLink> stored_links_;
};

v1::WorkerReport HelloReport();
v1::WorkerReport FailureReportOf(absl::StatusCode code, const std::string& message);
v1::WorkerReport PreparedReportOf(int32_t rank, uint64_t epoch, uint64_t checksum = 7);
v1::WorkerReport CommittedReportOf(int32_t rank, uint64_t epoch);
v1::WorkerReport IterationReportOf(int32_t rank, uint64_t epoch, int64_t iteration);
v1::WorkerReport FinishedReportOf(int32_t rank, uint64_t epoch, int64_t iterations);

}  // namespace geopipe
