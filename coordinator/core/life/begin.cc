#include "coordinator/core/life/begin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "optimizer/model/process_grid.h"

namespace geopipe {
namespace {

// Replicas of a rank, which hold the same states.
std::vector<int32_t> ReplicaGroups(const JobLife& life) {
  std::vector<int32_t> groups;
  for (int32_t rank = 0; rank < std::ssize(life.members) && life.plan->plan.zero_stage == 0; ++rank) {
    groups.push_back(life.plan->plan.grid.ReplicasOf(rank).front());
  }
  return groups;
}

// "planned: geopipe overlapped, micro_batch_size 1, …, 3 stages, predicted 0.812 s per iteration".
std::string PlanSentence(const PlanResult& plan) {
  return fmt::format(
      "planned: {} {}, micro_batch_size {}, sequence_length {}{}, {} micro-batches, {} stages, predicted {:.3f} s per "
      "iteration",
      ScheduleKindName(plan.plan.schedule), CommModeName(plan.plan.comm), plan.plan.micro_batch_size,
      plan.plan.sequence_length,
      plan.plan.delta_n.empty() ? "" : fmt::format(", delta_n [{}]", fmt::join(plan.plan.delta_n, ",")),
      plan.plan.micro_batches, plan.plan.stages.size(), static_cast<double>(plan.prediction.iteration_ns) / 1e9);
}

std::string EpochSentence(const JobLife& life, const Epoch& epoch) {
  const int64_t first = epoch.first_iteration;
  if (life.state == v1::JOB_STATE_PLANNING) {
    return epoch.from_checkpoint.has_value()
               ? fmt::format("{}; from the checkpoint of iteration {}", PlanSentence(*life.plan), first)
               : PlanSentence(*life.plan);
  }
  if (epoch.from_checkpoint.has_value()) {
    return fmt::format("epoch {} goes on from the checkpoint of iteration {}", epoch.number, first);
  }
  return first == 0 ? fmt::format("epoch {} begins anew", epoch.number)
                    : fmt::format("epoch {} goes on from iteration {}", epoch.number, first);
}

std::string PausedSentence(const JobLife& life, int64_t first) {
  const std::string paused = fmt::format("paused before iteration {}", first);
  if (!life.outrun) {
    return paused;
  }
  const std::vector<CheckpointIdentity> checkpoints = life.Checkpoints();
  const auto newest = std::ranges::max_element(checkpoints, {}, &CheckpointIdentity::iteration);
  return fmt::format(
      "{}, for the job store was older than this run: `geopipectl resume {} --from newest` goes on from there, `--from "
      "store` {}",
      paused, life.job.name,
      newest == checkpoints.end() ? "begins anew"
                                  : fmt::format("from the checkpoint of iteration {}", newest->iteration));
}

EpochFacts FactsOf(const Situation& s) {
  EpochFacts facts{.wanted = true,
                   .members = s.life.Members(),
                   .replica_groups = ReplicaGroups(s.life),
                   .workers = {},
                   .epochs_before = s.life.epochs_before,
                   .end_iteration = s.life.end(),
                   .told_iterations = std::min(s.told.iterations.next(), s.told.evaluations.next()),
                   .secret = s.life.secret,
                   .checkpoints = s.crew.Readable(s.now_ns, s.life.Checkpoints()),
                   .may_go_back = s.life.may_go_back,
                   .may_begin_at_end = s.life.state == v1::JOB_STATE_PAUSED && s.life.ended_at >= s.life.end()};
  for (const auto& [key, worker] : s.crew.workers) {
    const Post::Duty duty = s.life.posts.at(key).duty;
    if (duty != Post::Duty::kStopped) {
      facts.workers.push_back(worker);
      facts.workers.back().states = s.life.from_store ? std::vector<StateIdentity>() : worker.states;
    }
    if (duty == Post::Duty::kLost) {
      facts.workers.back().stage = WorkerFacts::Stage::kEnded;
    }
  }
  return facts;
}

}  // namespace

Answer Begin(const Situation& s) {
  const bool is_wanted = s.life.state == v1::JOB_STATE_PLANNING ? s.life.plan != nullptr
                         : s.life.state == v1::JOB_STATE_PAUSED
                             ? !s.life.wants.pause && s.crew.all_hear() && !s.MayTellMore()
                             : !s.life.wants.move && s.crew.all_hear();
  if (!is_wanted) {
    return std::nullopt;
  }
  EpochFacts facts = FactsOf(s);
  if (s.life.state == v1::JOB_STATE_RECOVERING && s.life.wants.pause && s.AllLeft()) {
    facts.told_iterations = s.life.end();  // all members live: they tell the rest of the epoch while it is PAUSED
  }
  if (s.life.state == v1::JOB_STATE_PAUSED) {
    facts.told_iterations = *s.life.ended_at;  // the job has said that it is paused before it
  }
  EpochDecision next = NextEpoch(s.life.epoch, facts);
  if (next.kind != EpochDecision::Kind::kNew) {
    return next.kind == EpochDecision::Kind::kFail ? Fail(std::move(next.reason)) : std::nullopt;
  }
  if (!s.life.epoch.has_value() && !s.life.FindsState()) {
    return Fail("no checkpoint of the job is on the nodes of its plan; apply it again with --resume");
  }
  const int64_t first = next.epoch.first_iteration;
  if (first == 0 && !s.life.checkpoints.listed.empty()) {
    return Enter(v1::JOB_STATE_PENDING, "its nodes lack files of all its checkpoints");
  }
  if (s.life.state == v1::JOB_STATE_RECOVERING && s.life.wants.pause) {
    return Enter(v1::JOB_STATE_PAUSED, PausedSentence(s.life, first), first);
  }
  if (s.life.secret.empty()) {
    return s.crew.secret_asked ? std::nullopt : Do(Decision::Kind::kAskSecret);
  }
  std::string sentence = EpochSentence(s.life, next.epoch);
  return Decision{.kind = Decision::Kind::kBegin, .sentence = std::move(sentence), .epoch = std::move(next.epoch)};
}

}  // namespace geopipe
