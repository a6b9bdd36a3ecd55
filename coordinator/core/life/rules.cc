#include "coordinator/core/life/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "coordinator/core/life/begin.h"
#include "coordinator/core/run/profiling.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

constexpr int kMaxSaves = 5;  // of a state that is wanted elsewhere or at the end, before the job stays as it is

// --- Losses -------------------------------------------------------------------------------------------------------

Answer Fault(const Situation& s) { return s.crew.fault.empty() ? std::nullopt : Fail(s.crew.fault); }

// The store is older than the run. Its workers are left alone where the plan that they follow is not known; else they
// end their epoch, and people choose. They are left alone, too, where there is a later run.
Answer Outrun(const Situation& s) {
  if (s.crew.later.empty()) {
    return std::nullopt;
  }
  const std::string sentence = fmt::format("the job store is older than this run: it knows {}", s.crew.later);
  const bool ends_epoch = s.life.epoch.has_value() && (!s.crew.succeeded || s.life.state == v1::JOB_STATE_RUNNING);
  return ends_epoch ? Decision{.kind = Decision::Kind::kLose, .sentence = sentence, .loss = "outrun"}
                    : Enter(v1::JOB_STATE_PENDING, sentence);
}

// Names what a job that has diverged can go on from.
std::string LastCheckpointWords(const JobLife& life) {
  const std::vector<CheckpointIdentity> found = life.Checkpoints();
  if (found.empty()) {
    return life.job.checkpoint.path.empty() ? "no checkpoint was written: the job has no checkpoint.path"
                                            : "no checkpoint was written";
  }
  return fmt::format("last checkpoint: iteration {}",
                     std::ranges::max(found, {}, &CheckpointIdentity::iteration).iteration);
}

std::optional<FailureEvidence> Cause(const Situation& s) {
  return s.crew.diagnosis.Verdict(s.now_ns, s.limits.failure_grace_ns, s.SomeSilent());
}

Answer Hopeless(const Situation& s) {
  const std::optional<FailureEvidence> cause = Cause(s);
  if (!cause.has_value() || s.Survives(*cause)) {
    return std::nullopt;
  }
  return Fail(cause->diverged && s.life.epoch.has_value()
                  ? fmt::format("{}; {}", cause->sentence, LastCheckpointWords(s.life))
                  : cause->sentence);
}

// Workers with trouble count as lost, and these. A worker's own losses are counted, those by a node's trouble are
// timed.
Answer LoseOrFail(const Situation& s, const FailureEvidence& cause, std::vector<LostWorker> more = {}) {
  Decision lose{
      .kind = Decision::Kind::kLose, .sentence = cause.sentence, .loss = cause.kind, .workers = std::move(more)};
  for (const auto& [key, worker] : s.crew.workers) {
    const bool is_named = std::ranges::find(lose.workers, key, &LostWorker::worker) != lose.workers.end();
    if (!is_named && !worker.trouble.empty() && s.life.posts.at(key).duty == Post::Duty::kServes) {
      lose.workers.push_back({key, worker.trouble, worker.of_node, worker.of_peer});
    }
  }
  for (const LostWorker& lost : lose.workers) {
    if (lost.of_node || lost.of_peer) {
      const int64_t lasts_ns = s.now_ns - s.crew.around.unfit_since_ns.value_or(s.now_ns);
      if (lasts_ns >= s.limits.start_trouble_ns) {
        return Fail(fmt::format("for {} no node has been fit for it; last: {}", FormatSeconds(lasts_ns), lost.cause));
      }
    } else if (auto enough = s.crew.restarts.Enough(s.now_ns, lost.worker, lost.cause); enough.has_value()) {
      return Fail(*std::move(enough));
    }
  }
  return lose;
}

Answer Loss(const Situation& s) {
  const std::optional<FailureEvidence> cause = Cause(s);
  return cause.has_value() ? LoseOrFail(s, *cause) : std::nullopt;
}

Answer Diagnosing(const Situation& s) { return s.crew.diagnosis.pending() ? Say(WaitsFor(s)) : std::nullopt; }

// --- Going on after a loss ----------------------------------------------------------------------------------------

Answer Leave(const Situation& s) {
  return s.crew.around.exit.why == Exit::Why::kGone && !s.life.wants.pause
             ? Enter(v1::JOB_STATE_PENDING, s.crew.around.exit.cause)
             : std::nullopt;
}

Answer Restart(const Situation& s) {
  const bool is_due = s.now_ns >= s.crew.times.recover_at_ns &&
                      std::ranges::any_of(s.life.posts, [&](const auto& entry) { return s.MayStart(entry.first); });
  return is_due ? Do(Decision::Kind::kStart) : std::nullopt;
}

Answer Lacking(const Situation& s) {
  return s.crew.lacking.empty() ? std::nullopt : Enter(v1::JOB_STATE_PENDING, s.crew.lacking);
}

// --- Up to the first iteration ------------------------------------------------------------------------------------

Answer Measure(const Situation& s) {
  const bool all = std::ranges::all_of(s.crew.workers, [](const auto& entry) { return entry.second.attached(); });
  if (s.crew.measuring || !all) {
    return std::nullopt;
  }
  return ProfileCandidates(s.life.choices, s.life.run, s.life.posts.size(),
                           StandForDevices(s.life.run, s.life.allocation))
                 .empty()
             ? Enter(v1::JOB_STATE_PLANNING, "the worker is up and its costs are given: there is nothing to measure")
             : Do(Decision::Kind::kMeasure);
}

Answer Measured(const Situation& s) {
  if (!s.crew.measuring || !s.crew.rounds.done()) {
    return std::nullopt;
  }
  const bool finds_state = !s.life.must_find_state ||
                           std::ranges::any_of(s.life.checkpoints.listed,
                                               [&](const ListedCheckpoint& each) { return each.IsAt(s.life.nodes); });
  if (!finds_state) {
    return Enter(v1::JOB_STATE_PENDING, "none of its checkpoints is complete on the nodes that it was given");
  }
  const int64_t workers = std::ssize(s.crew.workers);
  return Enter(v1::JOB_STATE_PLANNING,
               s.crew.rounds.profile().entries.empty()
                   ? fmt::format("all {} workers are up and have measured their transport", workers)
                   : fmt::format("{} measured at {}", Counted(workers, "device"),
                                 Counted(s.crew.rounds.rounds(), "batch shape")));
}

Answer Search(const Situation& s) {
  return s.life.plan == nullptr && !s.crew.plan_asked && s.crew.undriven.empty() ? Do(Decision::Kind::kAskPlan)
                                                                                 : std::nullopt;
}

Answer Deployed(const Situation& s) {
  if (s.crew.rollout.phase() != PlanRollout::Phase::kCommitted) {
    return std::nullopt;
  }
  const std::string mixture = s.crew.rollout.Mixture();
  return Enter(v1::JOB_STATE_RUNNING, fmt::format("all {} ranks have committed epoch {}{}{}", s.life.members.size(),
                                                  s.life.epoch->number, mixture.empty() ? "" : "; ", mixture));
}

// --- The end of an epoch ------------------------------------------------------------------------------------------

bool AllTold(const Situation& s) { return s.AllFinished() && s.told.iterations.next() >= s.life.end(); }

Answer Done(const Situation& s) {
  return AllTold(s) && s.told.evaluations.next() > s.life.end() && s.LastSaved()
             ? Enter(v1::JOB_STATE_COMPLETED, DoneSentence(s.life.end()))
             : std::nullopt;
}

// Reports that come later than this would belong to no epoch.
Answer Rest(const Situation& s) {
  const std::optional<int64_t>& ends_at = s.crew.ends_at;
  if (AllTold(s) && s.told.evaluations.next() > s.life.end() && s.life.wants.pause && !s.LastSaved() &&
      !s.crew.checkpoint_trouble.empty()) {
    return Enter(v1::JOB_STATE_PAUSED, "paused with all iterations done, before its last state could be written",
                 s.life.end());
  }
  if (AllTold(s) || !ends_at.has_value() || s.told.iterations.next() < *ends_at || !s.AllLeft()) {
    return std::nullopt;
  }
  return s.life.wants.move && !s.life.wants.pause
             ? Enter(v1::JOB_STATE_REPLANNING,
                     fmt::format("{}; its ranks rest before iteration {}", s.life.wants.move_cause, *ends_at), *ends_at)
             : Enter(v1::JOB_STATE_PAUSED, fmt::format("paused before iteration {}", *ends_at), *ends_at);
}

Answer Close(const Situation& s) {
  const std::string& closing = s.crew.around.closing;
  if (closing.empty()) {
    return std::nullopt;
  }
  if (!s.life.epoch.has_value()) {  // nothing was done since its last checkpoint
    return Enter(v1::JOB_STATE_CANCELLED, closing);
  }
  if (s.life.state == v1::JOB_STATE_RUNNING && !s.life.wants.pause && !s.AllDone()) {
    return Do(Decision::Kind::kWantPause);
  }
  if (s.life.state == v1::JOB_STATE_PAUSED && s.life.checkpoints.Reaches(*s.life.ended_at)) {
    return Enter(v1::JOB_STATE_CANCELLED,
                 fmt::format("{}; its state before iteration {} is in a checkpoint", closing, *s.life.ended_at));
  }
  return std::nullopt;
}

Answer Move(const Situation& s) {
  return s.crew.around.exit.why == Exit::Why::kMove && s.MayMove()
             ? Decision{.kind = Decision::Kind::kWantMove, .sentence = s.crew.around.exit.cause}
             : Answer();
}

// A rank that does not hear of the end would be left alone.
Answer End(const Situation& s) {
  return (s.life.wants.pause || s.life.wants.move) && !s.life.ending && s.crew.all_hear() ? Do(Decision::Kind::kEnd)
                                                                                          : std::nullopt;
}

// Copies of it that are under way are not waited for: they are made at the pace for training, although nothing trains
// now.
Answer Moved(const Situation& s) {
  const CheckpointList& checkpoints = s.life.checkpoints;
  if (!s.life.wants.move || checkpoints.listed.empty()) {
    return std::nullopt;
  }
  std::set<NodeKey> staying;
  for (const WorkerKey& member : s.life.members) {
    if (!s.crew.around.leaving.contains(member.node_key())) {
      staying.insert(member.node_key());
    }
  }
  const ListedCheckpoint& newest = checkpoints.listed.back();
  return newest.identity.iteration == *s.life.ended_at && newest.IsAt(staying)
             ? Enter(v1::JOB_STATE_PENDING, fmt::format("{}; the state before iteration {} is safe",
                                                        s.life.wants.move_cause, *s.life.ended_at))
             : std::nullopt;
}

// The state behind the last iteration is written when training ends, and only when that has failed ordered again, as
// long as it takes.
Answer Save(const Situation& s) {
  const bool is_last = s.life.state == v1::JOB_STATE_RUNNING;
  const bool is_wanted =
      is_last ? s.AllDone() && s.AllFinished() && !s.LastSaved() &&
                    (!s.crew.checkpoint_trouble.empty() || !s.crew.heard_all)
              : (s.life.state == v1::JOB_STATE_PAUSED ? !s.crew.around.closing.empty() : s.life.wants.move);
  if (!is_wanted) {
    return std::nullopt;
  }
  const int64_t iteration = is_last ? s.life.end() : *s.life.ended_at;
  // An attempt that some rank reports again after a restart may never end.
  const bool is_pending = s.crew.checkpoints.Pending(iteration) && (s.crew.heard_all || !s.crew.all_hear());
  if (is_pending) {
    return std::nullopt;
  }
  if (!is_last && s.crew.saving.tries >= kMaxSaves) {
    return Do(Decision::Kind::kStay);
  }
  return s.crew.all_hear() && s.now_ns >= s.crew.saving.not_before_ns
             ? Decision{.kind = Decision::Kind::kSave, .iteration = iteration}
             : Answer();
}

// --- Time ---------------------------------------------------------------------------------------------------------

// Missing reports are lost once all workers have left the epoch, are connected and say no more.
Answer Gaps(const Situation& s) {
  constexpr int64_t kLastWordsNs = 120'000'000'000;
  constexpr int64_t kFirstWordsNs = 5'000'000'000;  // of workers whose agent is back
  const bool is_quiet = s.now_ns - std::max(s.crew.times.told_ns, s.crew.times.progress_ns) >= kLastWordsNs &&
                        s.now_ns - s.crew.times.returned_ns >= kFirstWordsNs;
  const bool lacks_some = s.told.iterations.next() < s.crew.reached ||
                          (s.AllFinished() && s.told.evaluations.next() != EvaluationLog::kNone);
  return is_quiet && lacks_some && s.AllLeft() && !s.SomeSilent() ? Do(Decision::Kind::kTellAll) : std::nullopt;
}

Answer LateRecovery(const Situation& s) {
  std::vector<LostWorker> late;
  for (const auto& [key, worker] : s.crew.workers) {
    const bool is_up = worker.stage != WorkerFacts::Stage::kStarting;
    const bool is_awaited = s.life.posts.at(key).duty == Post::Duty::kServes && s.crew.heard(key.node_key());
    if (is_awaited && (!is_up || !worker.Rests())) {
      late.push_back({key,
                      fmt::format("worker {} (site {}) did not {} within {}", DisplayName(key), key.site,
                                  is_up ? "end its epoch" : "start", FormatSeconds(s.limits.start_timeout_ns)),
                      !is_up});
    }
  }
  if (late.empty()) {  // missing workers cannot be started yet
    return Do(Decision::Kind::kExtend);
  }
  return LoseOrFail(s, {.sentence = s.DeadlineSentence(), .kind = "late"}, std::move(late));
}

Answer Late(const Situation& s) {
  // A job that waits for its last checkpoint waits however long that takes.
  const bool waits_for_last = s.AllDone() && s.AllFinished() && s.told.iterations.next() >= s.crew.reached;
  if (s.now_ns < s.DeadlineNs() || waits_for_last || s.AllSilent()) {
    return std::nullopt;
  }
  if (s.life.state == v1::JOB_STATE_RECOVERING) {
    return LateRecovery(s);
  }
  const bool is_deploying = s.life.state == v1::JOB_STATE_DEPLOYING;
  const bool is_starting = s.life.state == v1::JOB_STATE_PROFILING && !s.crew.measuring;
  const FailureEvidence late{.worth = FailureEvidence::Worth::kRoot,
                             .sentence = s.DeadlineSentence(),
                             .kind = s.life.state == v1::JOB_STATE_RUNNING ? "no_progress"
                                     : is_starting                         ? "unfit"
                                                                           : "late",
                             .of_node = is_starting};
  if (!s.Survives(late) || (is_deploying && s.life.epoch->number == 1)) {
    return Fail(late.sentence);
  }
  std::vector<LostWorker> missing;
  for (const WorkerKey& key : is_deploying ? s.crew.rollout.Missing() : std::vector<WorkerKey>{}) {
    const bool prepares = s.crew.rollout.phase() == PlanRollout::Phase::kPreparing;
    missing.push_back({key,
                       fmt::format("worker {} (site {}) did not {} epoch {} in time", DisplayName(key), key.site,
                                   prepares ? "prepare" : "commit", s.life.epoch->number),
                       s.HasTrained()});
  }
  for (const auto& [key, worker] : s.crew.workers) {
    if (is_starting && worker.stage == WorkerFacts::Stage::kStarting) {
      missing.push_back({key, fmt::format("worker {} (site {}) did not start", DisplayName(key), key.site), true});
    }
  }
  return LoseOrFail(s, late, std::move(missing));
}

// --- The table ----------------------------------------------------------------------------------------------------

const Rule kRules[] = {
    {"outrun",
     {},
     "agents tell of a later epoch or worker of the run than its record, or of a later run: the job store is an older "
     "one",
     "RECOVERING, to be PAUSED until people choose; without an epoch, or where there is a later run, PENDING, and the "
     "workers are left alone",
     Outrun},
    {"fault", {}, "a report shows what no other worker could do better: data or replicas that differ", "FAILED", Fault},
    {"hopeless", {}, "a cause is known that would recur, or nothing may be started again", "FAILED", Hopeless},
    {"lose",
     {},
     "a cause is known",
     "RECOVERING; without an epoch PENDING; FAILED when a worker was lost too often, or nodes were unfit for too long",
     Loss},
    {"leave",
     {v1::JOB_STATE_RECOVERING, v1::JOB_STATE_PAUSED},
     "nodes are not heard for the job's grace, and it can go on at others",
     "PENDING",
     Leave},
    {"lacking",
     {v1::JOB_STATE_DEPLOYING},
     "its nodes lack files of its checkpoint, and others have them",
     "PENDING",
     Lacking},
    {"restart",
     {v1::JOB_STATE_RECOVERING},
     "a lost worker has ended, its agent is heard, and the delay is over",
     "start another",
     Restart},
    {"deployed", {v1::JOB_STATE_DEPLOYING}, "all ranks have committed", "RUNNING", Deployed},
    {"done",
     {v1::JOB_STATE_RUNNING},
     "all iterations and evaluations are told, and the last state is safe",
     "COMPLETED",
     Done},
    {"diagnose",
     {v1::JOB_STATE_PROFILING, v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING, v1::JOB_STATE_PAUSED,
      v1::JOB_STATE_REPLANNING},
     "something ended, and a better explanation may still come",
     "wait",
     Diagnosing},
    {"measure",
     {v1::JOB_STATE_PROFILING},
     "all workers are there",
     "measure, or PLANNING when nothing has to be",
     Measure},
    {"measured",
     {v1::JOB_STATE_PROFILING},
     "all have measured all",
     "PLANNING; PENDING when its nodes have no checkpoint of it",
     Measured},
    {"search", {v1::JOB_STATE_PLANNING}, "there is no plan, and all agents are there", "ask the planner", Search},
    {"rest",
     {v1::JOB_STATE_RUNNING},
     "all members have left the epoch, and its iterations are told; where all are done, the last state is in trouble",
     "PAUSED, or REPLANNING to move",
     Rest},
    {"close", {}, "it is to be cancelled with a checkpoint", "pause; CANCELLED when the checkpoint is there", Close},
    {"move",
     {v1::JOB_STATE_RUNNING},
     "a site is drained, a node goes down or nodes are back, and there are devices to go to",
     "want to move",
     Move},
    {"end",
     {v1::JOB_STATE_RUNNING},
     "a pause or move is wanted, and every agent hears",
     "order the end of the epoch",
     End},
    {"moved",
     {v1::JOB_STATE_REPLANNING},
     "the state that the ranks rest with is safe at nodes that stay",
     "PENDING",
     Moved},
    {"save",
     {v1::JOB_STATE_RUNNING, v1::JOB_STATE_PAUSED, v1::JOB_STATE_REPLANNING},
     "a state is wanted in a checkpoint, and no attempt is under way",
     "write it; after five attempts stay, but for the last state",
     Save},
    {"begin",
     {v1::JOB_STATE_PLANNING, v1::JOB_STATE_PAUSED, v1::JOB_STATE_RECOVERING, v1::JOB_STATE_REPLANNING},
     "the old epoch cannot finish an iteration any more, and all members can have one state",
     "DEPLOYING; PAUSED where that is wanted; PENDING when files of all checkpoints are missing",
     Begin},
    {"gaps",
     {v1::JOB_STATE_RUNNING},
     "all have left the epoch, and reports of it are missing for two minutes",
     "tell what is known",
     Gaps},
    {"late",
     {v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING, v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING,
      v1::JOB_STATE_RECOVERING},
     "the state's limit of time is over",
     "as a loss of those that are missing; FAILED before the first epoch",
     Late},
};

Answer FirstOf(std::span<const Rule> rules, const Situation& situation) {
  for (const Rule& rule : rules) {
    if (rule.in.empty() || std::ranges::find(rule.in, situation.life.state) != rule.in.end()) {
      if (Answer answer = rule.decide(situation); answer.has_value()) {
        answer->rule = rule.name;
        return answer;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::string DoneSentence(int64_t iterations) {
  return iterations == 1 ? "its one iteration is done" : fmt::format("all {} iterations are done", iterations);
}

std::span<const Rule> Rules() { return kRules; }

Decision Next(const Situation& situation) {
  const Answer answer = FirstOf(kRules, situation);
  return answer.has_value() ? *answer : FirstOf(Waits(), situation).value_or(Decision{});
}

std::string WaitsFor(const Situation& situation) { return FirstOf(Waits(), situation).value_or(Decision{}).sentence; }

}  // namespace geopipe
