#include "coordinator/core/life/situation.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "optimizer/model/patience.h"
#include "optimizer/model/transformer.h"
#include "optimizer/schedule/action.h"

namespace geopipe {
namespace {

// Time to read or send the bytes at a pessimistic rate.
int64_t SlowNs(int64_t bytes) {
  constexpr double kSlowBytesPerSecond = 2e7;
  return static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / kSlowBytesPerSecond);
}

}  // namespace

// --- The epoch ----------------------------------------------------------------------------------------------------

bool Situation::Finished(const WorkerFacts& worker) const {
  return life.epoch.has_value() && worker.HasLeft(life.epoch->number) && !worker.failed &&
         worker.next_iteration >= life.end();
}

bool Situation::AllFinished() const {
  return std::ranges::all_of(life.members, [&](const WorkerKey& member) { return Finished(Of(member)); });
}

bool Situation::AllLeft() const {
  return std::ranges::all_of(life.members,
                             [&](const WorkerKey& member) { return Of(member).HasLeft(life.epoch->number); });
}

bool Situation::SomeLeft() const {
  return life.epoch.has_value() && std::ranges::any_of(life.members, [&](const WorkerKey& member) {
           return Of(member).HasLeft(life.epoch->number);
         });
}

bool Situation::LastSaved() const {
  return life.job.checkpoint.path.empty() ||
         (life.checkpoints.Reaches(life.end()) && !crew.checkpoints.Pending(life.end()));
}

bool Situation::MayMove() const {
  return life.state == v1::JOB_STATE_RUNNING && !Leaves() && !AllDone() && now_ns >= crew.times.move_not_before_ns &&
         !life.job.checkpoint.path.empty();
}

int64_t Situation::GivenStateBytes() const {
  constexpr int64_t kStateBytes = 12;
  if (!life.epoch.has_value() || life.epoch->state_ranks.empty()) {
    return 0;
  }
  const Plan& plan = life.plan->plan;
  std::vector<int64_t> of_rank(plan.pipeline_ranks.size(), 0);
  for (const StagePlan& stage : plan.stages) {
    of_rank[stage.pipeline_rank] += ParameterCountPerRank(life.job.model, stage.layers, plan.grid.tensor);
  }
  return kStateBytes * std::ranges::max(of_rank);
}

// --- Agents -------------------------------------------------------------------------------------------------------

bool Situation::AllSilent() const {
  return std::ranges::count_if(crew.silences, &NodeSilence::is_silent) == std::ssize(life.nodes);
}

bool Situation::SomeSilent() const { return std::ranges::any_of(crew.silences, &NodeSilence::is_silent); }

std::string Situation::UnheardNames() const {
  const std::vector<NodeKey> nodes = crew.unheard();
  return fmt::format("{} {}", nodes.size() == 1 ? "agent" : "agents", DisplayNames(nodes));
}

// --- Losses -------------------------------------------------------------------------------------------------------

bool Situation::MayRecover() const {
  return limits.restarts_per_hour > 0 && life.epoch.has_value() && life.state != v1::JOB_STATE_PROFILING &&
         life.state != v1::JOB_STATE_PLANNING;
}

// A job without an epoch has nothing to lose and may start over. Only failures of devices are worth it, since a
// worker's own would recur; but a job that had an epoch in an earlier run starts over after any that is not permanent.
bool Situation::Survives(const FailureEvidence& why) const {
  const bool recurs = why.permanent && !(why.of_node && HasTrained());
  const bool by_devices = why.kind == "killed" || why.kind == "silent" || why.kind == "gone" || why.kind == "unfit";
  const bool may_begin_again =
      limits.restarts_per_hour > 0 && !life.epoch.has_value() && (by_devices || (life.epochs_before > 0 && !recurs));
  return (MayRecover() && !recurs) || may_begin_again;
}

bool Situation::MayStart(const WorkerKey& worker) const {
  const std::optional<int64_t>& alone_ns = Of(worker).alone_since_ns;
  const bool may_live =
      alone_ns.has_value() && now_ns < std::max(*alone_ns, crew.times.quiet_ns) + AloneNs(worker.node_key());
  return life.posts.at(worker).duty == Post::Duty::kLost && !may_live && crew.heard(worker.node_key());
}

// --- Limits of time -----------------------------------------------------------------------------------------------

int64_t Situation::SlowestIterationNs() const {
  if (life.plan == nullptr) {
    return 0;
  }
  const auto iteration_ns = static_cast<double>(life.plan->prediction.iteration_ns);
  // Several times the iteration, and once the passes, each of which takes a part of an iteration.
  const double passes = life.job.evaluates() ? static_cast<double>(life.job.evaluation.iterations) : 0;
  return PatienceNs(iteration_ns) + PatienceNs(iteration_ns * passes / 10);
}

// The same time is in the CommitCommand, for a worker in an epoch or at rest after one.
int64_t Situation::GraceNs(const NodeSilence& silence, bool rests) const {
  return silence.margin_ns + std::max({silence.grace_ns, SlowestIterationNs(), rests ? limits.rest_ns : 0});
}

int64_t Situation::AloneNs(const NodeKey& node) const {
  constexpr int64_t kGraceNs = 30'000'000'000;  // of agents that have not told theirs
  constexpr int64_t kMarginNs = 5'000'000'000;
  const int64_t told_ns = life.NodeOf(node).orphan_grace_ns;
  return kMarginNs + std::max(told_ns == 0 ? kGraceNs : told_ns, SlowestIterationNs());
}

bool Situation::IsQuiet(const WorkerKey& key, const WorkerFacts& worker) const {
  const Post::Duty duty = life.posts.at(key).duty;
  if (duty == Post::Duty::kStopped || worker.stage == WorkerFacts::Stage::kEnded || worker.Rests() ||
      worker.alone_since_ns.has_value()) {
    return true;
  }
  const auto silence = std::ranges::find(crew.silences, key.node_key(), &NodeSilence::node);
  return duty == Post::Duty::kLost && silence != crew.silences.end() && silence->is_silent &&
         silence->silent_ns >= GraceNs(*silence, false);
}

// Reading a checkpoint takes as long as disks and links take; a worker that fetches a file notices by itself when none
// comes.
int64_t Situation::PrepareLimitNs() const {
  const auto from = std::ranges::find_if(life.checkpoints.listed, [&](const ListedCheckpoint& each) {
    return life.epoch->from_checkpoint == each.identity;
  });
  return limits.prepare_timeout_ns + (from == life.checkpoints.listed.end() ? 0 : SlowNs(from->bytes));
}

int64_t Situation::StuckAfterNs(std::string_view text) const {
  const absl::StatusOr<Action> action = ParseAction(text);
  const bool is_order = !action.ok() && text != "abandonment";
  if (is_order) {
    const bool may_act = life.state == v1::JOB_STATE_RECOVERING || life.state == v1::JOB_STATE_DEPLOYING;
    return may_act && !text.empty() ? PrepareLimitNs() : kNoDeadlineNs;
  }
  if (life.state != v1::JOB_STATE_RUNNING && life.state != v1::JOB_STATE_RECOVERING) {
    return kNoDeadlineNs;
  }
  int64_t planned_ns = 0;
  for (int32_t stage = 0; life.plan != nullptr && stage < life.plan->costs.shape.stages; ++stage) {
    if (!action.ok() || action->stage == stage) {
      planned_ns = std::max({planned_ns, life.plan->costs.forward_ns[stage], life.plan->costs.BackwardNs(stage)});
    }
  }
  return std::max(limits.stuck_after_ns, PatienceNs(static_cast<double>(planned_ns)));
}

// Replicas send each other states between connecting and reporting that they have.
int64_t Situation::LimitNs() const {
  switch (life.state) {
    case v1::JOB_STATE_PROFILING:
      return crew.measuring ? limits.profile_timeout_ns : limits.start_timeout_ns;
    case v1::JOB_STATE_PLANNING:
      return crew.times.planning && life.plan == nullptr ? life.job.search.time_budget_ns + limits.planning_margin_ns
                                                         : kNoDeadlineNs;
    case v1::JOB_STATE_DEPLOYING:
      return crew.rollout.phase() == PlanRollout::Phase::kPreparing
                 ? PrepareLimitNs()
                 : limits.commit_timeout_ns + SlowNs(GivenStateBytes());
    case v1::JOB_STATE_RUNNING:
      return std::max(limits.progress_timeout_ns, SlowestIterationNs());
    case v1::JOB_STATE_RECOVERING:
      return limits.start_timeout_ns;
    default:
      return kNoDeadlineNs;
  }
}

bool Situation::MayTellMore() const {
  constexpr int64_t kLastWordsNs = 2'000'000'000;
  return life.state == v1::JOB_STATE_PAUSED &&
         std::min(told.iterations.next(), told.evaluations.next()) < life.ended_at.value_or(0) &&
         now_ns - std::max(crew.times.told_ns, crew.times.returned_ns) < kLastWordsNs;
}

int64_t Situation::DeadlineNs() const {
  const int64_t limit_ns = LimitNs();
  return limit_ns == kNoDeadlineNs ? kNoDeadlineNs : crew.times.since_ns + limit_ns;
}

std::string Situation::DeadlineSentence() const {
  switch (life.state) {
    case v1::JOB_STATE_PROFILING: {
      if (crew.measuring) {
        const ProfileCandidate& asked = crew.rounds.candidate();
        return fmt::format("no measurement of {} within {} from: {}",
                           asked.skip_compute ? fmt::format("messages of {} bytes", asked.message_bytes)
                                              : fmt::format("micro_batch_size {}, sequence_length {}",
                                                            asked.micro_batch_size, asked.sequence_length),
                           FormatSeconds(limits.profile_timeout_ns), DisplayNames(crew.rounds.missing()));
      }
      std::vector<WorkerKey> missing;
      for (const auto& [key, worker] : crew.workers) {
        if (worker.stage == WorkerFacts::Stage::kStarting) {
          missing.push_back(key);
        }
      }
      return fmt::format("workers did not start within {}: {}", FormatSeconds(limits.start_timeout_ns),
                         DisplayNames(missing));
    }
    case v1::JOB_STATE_PLANNING:
      return fmt::format("the planner found no plan within search.time_budget {} plus {}",
                         FormatSeconds(life.job.search.time_budget_ns), FormatSeconds(limits.planning_margin_ns));
    case v1::JOB_STATE_DEPLOYING: {
      const bool preparing = crew.rollout.phase() == PlanRollout::Phase::kPreparing;
      return fmt::format("workers did not {} epoch {} within {}: {}", preparing ? "prepare" : "commit",
                         crew.rollout.epoch(), FormatSeconds(LimitNs()), DisplayNames(crew.rollout.Missing()));
    }
    case v1::JOB_STATE_RECOVERING:
      return fmt::format("workers were not ready for another epoch within {}", FormatSeconds(limits.start_timeout_ns));
    default:
      return fmt::format("iteration {} has not finished within {}", told.iterations.next(), FormatSeconds(LimitNs()));
  }
}

}  // namespace geopipe
