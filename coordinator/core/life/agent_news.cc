#include "coordinator/core/life/agent_news.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

using Stage = WorkerFacts::Stage;
using Sight = WorkerFacts::Sight;

}  // namespace

void AgentNews::OnExit(const WorkerKey& key, const v1::WorkerExit& exit) {
  if (!life_.Has(key)) {
    return;
  }
  WorkerFacts& worker = crew_.workers.at(key);
  const bool was_attached = worker.attached();
  worker.stage = Stage::kEnded;
  worker.alone_since_ns.reset();
  // A job that recovers needs each of its workers: one that has ended as it should was told to by an earlier
  // coordinator.
  const bool orderly =
      Here().Finished(worker) && exit.signal() == 0 && exit.exit_code() == 0 && life_.state != v1::JOB_STATE_RECOVERING;
  // A worker that has reported a failure stops by itself afterwards: its exit is no news, nor is the exit of one that
  // is to be started again.
  if (orderly || life_.posts.at(key).duty == Post::Duty::kLost) {
    return;
  }
  FailureEvidence evidence = EvidenceOf(key, exit, was_attached);
  if (worker.trouble.empty()) {
    worker.trouble = evidence.sentence;
    worker.of_node = evidence.of_node;
  }
  if (exit.signal() != 0 || !worker.failed) {
    crew_.diagnosis.Add(now_ns_, std::move(evidence));
  }
}

void AgentNews::OnSilent(const WorkerKey& key, const v1::WorkerSilent& silent) {
  WorkerFacts& worker = crew_.workers.at(key);
  if (life_.posts.at(key).duty == Post::Duty::kLost) {
    return;
  }
  worker.of_node = worker.of_peer = false;
  worker.trouble =
      fmt::format("worker {} (site {}, pid {}) is alive but has been silent for {}: it is stopped or stuck",
                  DisplayName(key), key.site, silent.pid(), FormatSeconds(silent.silent_ns()));
  crew_.diagnosis.Add(now_ns_, {.worth = FailureEvidence::Worth::kRoot, .sentence = worker.trouble, .kind = "silent"});
}

void AgentNews::OnNodeReturned(const NodeKey& node, const std::map<WorkerKey, Living>& alive, bool fresh) {
  if (fresh) {
    crew_.undriven.insert(node);
  }
  for (auto& [key, worker] : crew_.workers) {
    const auto living = alive.find(key);
    if (key.node_key() != node || !life_.Has(key) || (!fresh && living == alive.end())) {
      continue;
    }
    worker.sent = fresh ? Order() : worker.sent;
    const Sight before = std::exchange(worker.sight, living == alive.end() ? Sight::kUnseen : Sight::kSeen);
    const bool is_lost = life_.posts.at(key).duty == Post::Duty::kLost;
    if (living != alive.end()) {
      worker.stage =
          living->second.attached && worker.stage == Stage::kStarting && fresh ? Stage::kAttached : worker.stage;
      const v1::WorkerStatus& status = living->second.status;
      TakeStatus(worker, status);
      if (before == Sight::kOutOfReach) {  // the worker was only out of reach
        life_.posts.at(key).duty = Post::Duty::kServes;
        worker.trouble.clear();
        worker.of_node = worker.of_peer = false;
      }
    } else if (before == Sight::kOutOfReach) {
      worker.alone_since_ns = now_ns_;  // the worker may have lost its agent a moment ago
    } else if (const Situation s = Here();
               worker.attached() && !is_lost && (!s.Finished(worker) || s.MayRecover() || !s.LastSaved())) {
      worker.trouble =
          fmt::format("worker {} (site {}) is gone: its agent came back without it", DisplayName(key), key.site);
      worker.alone_since_ns = now_ns_;
      crew_.diagnosis.Add(now_ns_,
                          {.worth = FailureEvidence::Worth::kUnexplained, .sentence = worker.trouble, .kind = "gone"});
    }
  }
  crew_.times.returned_ns = now_ns_;
  NoteProgress();
  for (const auto& [key, living] : alive) {
    if (key.node_key() == node) {
      Settle(crew_.workers.at(key));
    }
  }
}

void AgentNews::OnYounger(const WorkerKey& key, uint64_t number) {
  life_.posts.at(key) = {.incarnation = number};
  crew_.workers[key] = {.worker = {key, number}, .stage = Stage::kAttached, .phase = v1::WORKER_PHASE_UNSPECIFIED};
  crew_.later = fmt::format("of worker {}, which another has followed since", DisplayName(key));
  if (life_.epoch.has_value()) {
    life_.epoch->members = life_.Members();
  }
}

void AgentNews::OnLaterRun(const WorkerKey& key) {
  crew_.later = fmt::format("of no run after it, and worker {} belongs to one", DisplayName(key));
  crew_.succeeded = true;
}

// Orders and answers on a last state may have been lost with an agent, and nothing else would reveal it, so it is asked
// for again.
void AgentNews::OnAllConnected() {
  if (!crew_.undriven.empty() && (life_.state == v1::JOB_STATE_REPLANNING || Here().AllDone())) {
    crew_.checkpoints.Abandon();
    crew_.heard_all = false;
    crew_.saving.not_before_ns = now_ns_ + (life_.state == v1::JOB_STATE_REPLANNING ? 0 : kSaveLastAgainNs);
  }
  crew_.undriven.clear();
}

void AgentNews::OnTick() {
  const int64_t last_ns = std::exchange(crew_.times.last_tick_ns, now_ns_);
  const int64_t passed_ns = last_ns == 0 ? 0 : now_ns_ - last_ns;
  const Situation s = Here();
  if (s.AllSilent()) {
    crew_.Forgive(passed_ns);
    return;
  }
  // The silence of a node matters in states in which the job cannot go on without it and no other report shows that it
  // goes on.
  if (life_.state == v1::JOB_STATE_PLANNING || life_.state == v1::JOB_STATE_PAUSED) {
    return;
  }
  if (life_.state != v1::JOB_STATE_RECOVERING) {
    if (s.SomeSilent()) {
      crew_.times.since_ns += passed_ns;  // silent nodes cannot answer, and have a grace of their own
    }
    NoteSilence();
    return;
  }
  // Workers that nobody sees may go on among themselves however long an agent is silent, unless one is known to have
  // stopped.
  const bool some_stopped = std::ranges::any_of(
      crew_.workers, [](const auto& entry) { return entry.second.stage == Stage::kEnded || entry.second.Rests(); });
  const bool is_quiet = (some_stopped || !s.SomeSilent()) && std::ranges::all_of(crew_.workers, [&](const auto& entry) {
                          return s.IsQuiet(entry.first, entry.second);
                        });
  crew_.times.quiet_ns = is_quiet ? crew_.times.quiet_ns : now_ns_;
}

// Notes the loss of nodes that have been silent for so long that their workers, if they are cut off, have ended.
void AgentNews::NoteSilence() {
  const Situation s = Here();
  // A member that has left the epoch ends it for all, so the job may go on elsewhere without waiting for cut-off
  // workers to end by themselves.
  const bool may_leave = life_.job.on_site_loss == OnSiteLoss::kReplan && !s.AllDone() && s.SomeLeft();
  for (const NodeSilence& silence : crew_.silences) {
    const int64_t quiet_ns = std::min(silence.silent_ns, now_ns_ - crew_.times.progress_ns);
    const int64_t grace_ns =
        may_leave ? std::min(life_.job.grace_ns, s.GraceNs(silence, false)) : s.GraceNs(silence, s.AllDone());
    if (!silence.is_silent || quiet_ns < grace_ns) {
      continue;
    }
    std::vector<WorkerKey> workers;
    for (const auto& [key, post] : life_.posts) {
      if (key.node_key() == silence.node && post.duty != Post::Duty::kStopped) {
        workers.push_back(key);
      }
    }
    std::string sentence = fmt::format(
        "agent {} (site {}) has not been heard from for {}, and the job makes no progress; its workers: {}",
        DisplayName(silence.node), silence.node.site, FormatSeconds(silence.silent_ns), DisplayNames(workers));
    for (const WorkerKey& key : workers) {
      crew_.workers.at(key).trouble = sentence;
      crew_.workers.at(key).of_node = crew_.workers.at(key).of_peer = false;
      crew_.workers.at(key).sight = Sight::kOutOfReach;
    }
    crew_.diagnosis.Add(
        now_ns_, {.worth = FailureEvidence::Worth::kRoot, .sentence = std::move(sentence), .kind = "unreachable"});
  }
}

}  // namespace geopipe
