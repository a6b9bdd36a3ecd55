// The agent's core: keeps the stream to the coordinator, looks after the workers of its node and passes their reports
// and commands on. One function, Step(now, event) -> effects; it reads no clock, starts no process, opens no socket.
//
// What holds (tests/agent checks it on random events):
//   - at most one worker process per device, and every worker that was started or refused ends as one WorkerExit;
//   - reports of a worker reach the coordinator in order, and its exit after all of them;
//   - an agent that is killed loses nothing: only when the coordinator has a report does the worker hear that it was
//     taken, and only when it has an exit does the keeper hear that it can be forgotten; the next agent asks the keeper
//     for the workers before it dials;
//   - each order of the coordinator is acted on once by this process, each command is handed to a worker until it has
//     taken it;
//   - a lost coordinator costs the workers nothing: their reports wait within a bound (report_queue.h);
//   - probes of links run only while the coordinator is there, a few at most, and each ends with one report;
//   - what carries a stale incarnation, session or connection changes nothing;
//   - another agent that lives in the place of this one ends it, as a shutdown would, with the coordinator's reason.
//     After any other refusal, for its version above all, it waits and dials again.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/config.h"
#include "agent/coordinator_link.h"
#include "agent/events.h"
#include "agent/worker_fleet.h"
#include "optimizer/model/capabilities.h"

namespace geopipe::agent {

struct AgentOptions {
  uint64_t incarnation = 0;  // of this process
  uint64_t seed = 0;         // of the backoff's jitter
  std::string version;
  int64_t gather_ns = 50'000'000;  // CoordinatorLinkOptions
  std::string host;                // host of this process, and its number: for people
  int64_t pid = 0;
  uint64_t known_coordinator = 0;  // CoordinatorLinkOptions
  std::string federation;
  std::string incarnation_file = "the state folder";
  WorkerFleetOptions fleet;                           // its incarnation is this process's
  int64_t host_memory_bytes = 0;                      // of this node; 0: not known
  std::vector<RefusedBackend> refused_backends = {};  // AskBackends in agent/worker_backends.h
  // Grace that stopped workers get at shutdown before they are killed.
  int64_t shutdown_grace_ns = 2'000'000'000;
  // Limit on probes at once; each has UCX open and a thread.
  size_t max_probes = 4;
};

class Agent {
 public:
  Agent(AgentConfig config, const AgentOptions& options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Time never goes back. Call with Tick at the latest at next_deadline_ns(). The coordinator is dialled when
  // KeeperListed has come.
  Effects Step(int64_t now_ns, Event event);

  int64_t next_deadline_ns() const;
  const CoordinatorLink& link() const { return link_; }
  const WorkerFleet& fleet() const { return fleet_; }

 private:
  v1::AgentHello Hello() const;
  void OnOrder(int64_t now_ns, v1::ConnectResponse order, Effects& effects);
  void OnProbeOrder(v1::ProbeLink order, Effects& effects);
  void OnProbeNews(ProbeNews event);
  void StopProbes(Effects& effects);
  void OnShutdown(int64_t now_ns, const std::string& reason, Effects& effects);
  void OnRefused(int64_t now_ns, Effects& effects);
  void OnTime(int64_t now_ns, Effects& effects);

  const AgentConfig config_;
  const AgentOptions options_;
  CoordinatorLink link_;
  WorkerFleet fleet_;
  std::set<uint64_t> probes_;  // under way
  bool shutting_down_ = false;
  absl::Status failure_;  // status to exit with
  bool exited_ = false;
  std::optional<int64_t> last_step_ns_;
  int64_t awake_ns_ = 0;  // time without the pauses of this process
};

}  // namespace geopipe::agent
