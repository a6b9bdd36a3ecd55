#include "coordinator/core/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "coordinator/cluster/allocation.h"
#include "coordinator/core/planning.h"
#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "optimizer/model/capabilities.h"
#include "optimizer/model/plan/rank_memory.h"
#include "proto/wire/checkpoint_wire.h"
#include "proto/wire/control_wire.h"
#include "proto/wire/schedule_wire.h"
#include "proto/wire/telemetry_wire.h"
#include "runtime/base/utf8.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe {
namespace {

constexpr size_t kMaxCauseBytes = 8192;
constexpr int kMaxRecoveries = 1000;  // limit on listed ones
constexpr int kMaxLostWorkers = 100;  // of one recovery; the latest are listed

void FillLive(const Job& job, v1::JobSummary& summary) {
  summary.set_iterations_done(job.iterations().next());
  if (const std::optional<double> loss = job.iterations().last_loss(); loss.has_value()) {
    summary.set_last_loss(*loss);
  }
  if (job.state() == v1::JOB_STATE_PENDING && !job.waiting_for.empty()) {
    summary.set_cause(job.waiting_for);
  } else if (std::string waits_for = job.run == nullptr ? "" : job.run->WaitsFor(); !waits_for.empty()) {
    summary.set_cause(job.stays.empty() ? std::move(waits_for) : fmt::format("{}; {}", waits_for, job.stays));
  } else if (!job.stays.empty() && !IsFinal(job.state())) {
    summary.set_cause(job.stays);
  }
  summary.set_trouble(TroubleOf(job));
}

// Fills in what the ranks have reported of their memory, for the plan that the detail has.
void FillMemory(const Job& job, v1::JobDetail& detail) {
  if (job.run != nullptr && job.run->life().plan != nullptr) {
    job.run->told().memory.WriteTo(*detail.mutable_measured_memory());
  }
}

// Fills in iterations, last loss, medians and memory as of now.
void FillFigures(const Job& job, v1::JobDetail& detail) {
  FillLive(job, *detail.mutable_summary());
  if (std::optional<v1::Measured> measured = job.iterations().Measure(TokensPerIteration(job)); measured.has_value()) {
    *detail.mutable_measured() = *std::move(measured);
  }
  FillMemory(job, detail);
}

// A cause may quote what others said: bounded, and text in any case.
std::string Shown(std::string_view cause) { return ToUtf8(cause.substr(0, kMaxCauseBytes)); }

void Append(Job& job, JobState to, const std::string& cause, int64_t unix_now_ns) {
  job.iterations_before.push_back(job.iterations().next());
  v1::JobTransition& transition = *job.detail.add_transitions();
  transition.set_state(to);
  transition.set_unix_time_ns(unix_now_ns);
  transition.set_cause(Shown(cause));
  job.detail.mutable_summary()->set_state(to);
  job.detail.mutable_summary()->set_cause(transition.cause());
}

// A kept run bears its number in the name that it is found under, whatever can be read of it.
void NumberKept(Job& job) {
  if (job.is_kept()) {
    job.detail.mutable_summary()->set_run(RunNameOf(job.name()).run);
  }
}

// The recovery that is not over yet; nullptr: there is none.
v1::RecoverySummary* OpenRecovery(Job& job) {
  auto& all = *job.detail.mutable_recoveries();
  return all.empty() || all.rbegin()->ended_unix_time_ns() != 0 ? nullptr : &*all.rbegin();
}

v1::CheckpointSummary ToProto(const ListedCheckpoint& listed) {
  v1::CheckpointSummary summary;
  *summary.mutable_identity() = ToProto(listed.identity);
  summary.set_bytes(listed.bytes);
  summary.set_duration_ns(listed.duration_ns);
  for (const ListedCheckpoint::Holders& holders : listed.parts) {
    v1::CheckpointPart& part = *summary.add_parts();
    for (const NodeKey& node : holders) {
      *part.add_holders() = ToProto(node);
    }
  }
  for (const std::set<NodeKey>& nodes : listed.unreadable_at) {
    v1::NodeNames& names = *summary.add_unreadable_at();
    for (const NodeKey& node : nodes) {
      *names.add_nodes() = ToProto(node);
    }
  }
  return summary;
}

std::vector<std::string> SitesOf(const Plan& plan) {
  std::vector<std::string> sites;
  for (const PipelineRankPlan& rank : plan.pipeline_ranks) {
    if (sites.empty() || sites.back() != rank.site) {
      sites.push_back(rank.site);
    }
  }
  return sites;
}

}  // namespace

void NoticeLog::Add(v1::JobNotice notice) {
  kept_.push_back(std::move(notice));
  if (kept_.size() > kMaxKept) {
    kept_.pop_front();
    ++dropped_;
  }
}

const v1::JobNotice* NoticeLog::Read(int64_t& number) const {
  number = std::max(number, dropped_);
  return number < next() ? &kept_[static_cast<size_t>(number++ - dropped_)] : nullptr;
}

std::string TroubleOf(const Job& job) {
  if (IsFinal(job.state())) {
    return "";
  }
  std::vector<std::string> troubles;
  if (const int32_t losses = job.detail.summary().losses(); losses >= kNotableLosses) {
    troubles.push_back(
        fmt::format("it has lost workers {} times without finishing an iteration, last: {}", losses,
                    job.detail.recoveries().empty() ? "not known" : job.detail.recoveries().rbegin()->cause()));
  }
  if (!job.detail.checkpoint_trouble().empty()) {
    troubles.push_back(job.detail.checkpoint_trouble());
  }
  if (std::string silent = job.run == nullptr ? "" : job.run->SilenceSentence(); !silent.empty()) {
    troubles.push_back(std::move(silent));
  }
  return fmt::format("{}", fmt::join(troubles, "; "));
}

std::unique_ptr<Job> NewJob(JobSpec spec, RunOptions options, int64_t unix_now_ns) {
  auto job = std::make_unique<Job>();
  job->detail.set_manifest(WriteManifest(spec));
  *job->detail.mutable_run() = ToProto(options);
  v1::JobSummary& summary = *job->detail.mutable_summary();
  summary.set_name(spec.name);
  summary.set_created_unix_time_ns(unix_now_ns);
  summary.set_iterations_total(EndIteration(spec, options));
  job->asks = AskedFor(spec, options);
  job->spec = std::move(spec);
  job->options = std::move(options);
  Append(*job, v1::JOB_STATE_PENDING, "submitted", unix_now_ns);
  return job;
}

absl::StatusOr<std::unique_ptr<Job>> RestoreJob(const StoredJob& stored) {
  auto job = std::make_unique<Job>();
  job->detail = stored.detail;
  NumberKept(*job);
  job->iterations_before.resize(stored.detail.transitions_size(), 0);
  job->last_worker = job->last_stored_worker = stored.record.last_worker();
  if (IsFinal(job->state())) {
    job->past = IterationLog(0, std::max(stored.next_iteration, stored.detail.summary().iterations_done()), 0);
    job->stored.has_more = stored.next_iteration > 0;
    job->stored.next = stored.next_iteration;
    job->iterations_before.back() = stored.next_iteration;
    return job;
  }
  GP_ASSIGN_OR_RETURN(job->spec, ParseManifest(stored.detail.manifest()));
  GP_ASSIGN_OR_RETURN(job->options, FromProto(stored.detail.run()));
  for (const v1::NodeName& node : stored.record.home()) {
    job->home.insert(KeyOf(node));
  }
  for (const v1::NodeName& node : stored.record.before()) {
    job->before.insert(KeyOf(node));
  }
  job->closing = stored.record.closing();
  job->asks = AskedFor(job->spec, job->options);
  if (job->state() == v1::JOB_STATE_PENDING && job->has_trained()) {
    GP_RETURN_IF_ERROR(ListedOf(stored.detail).status());
    GP_ASSIGN_OR_RETURN(job->checkpoints, CheckpointList::Read(stored.record));
  }
  return job;
}

std::unique_ptr<Job> DamagedJob(const StoredJob& stored, int64_t unix_now_ns) {
  auto job = std::make_unique<Job>();
  job->detail.set_manifest(stored.detail.manifest());
  job->detail.mutable_summary()->set_name(stored.detail.summary().name());
  job->is_damaged = true;
  NumberKept(*job);
  job->past = IterationLog(0, stored.next_iteration, 0);
  Append(*job, v1::JOB_STATE_FAILED,
         fmt::format("its row in the job store is damaged: restore a backup of the store (docs/operating.md){}",
                     job->is_kept()                             ? ""
                     : IsFinal(stored.detail.summary().state()) ? ", or apply it again"
                                                                : ", or apply it again with --resume"),
         unix_now_ns);
  return job;
}

void AddTransition(Job& job, JobState to, const std::string& cause, int64_t unix_now_ns) {
  GP_CHECK(MayFollow(job.state(), to), "job {}: {} to {}: {}", job.name(), JobStateName(job.state()), JobStateName(to),
           cause);
  Append(job, to, cause, unix_now_ns);
}

void SetPlanned(Job& job, const PlanResult& plan) {
  *job.detail.mutable_plan() = ToProto(plan.plan);
  *job.detail.mutable_prediction() = ToProto(plan.prediction);
  *job.detail.mutable_schedule() = ToProto(plan.schedule);
  *job.detail.mutable_costs() = ToProto(plan.costs);
  job.detail.clear_baselines();
  for (const Baseline& baseline : plan.baselines) {
    *job.detail.add_baselines() = ToProto(baseline);
  }
  job.detail.set_search_summary(SearchSummary(plan, job.options));
  job.detail.mutable_warnings()->Assign(plan.warnings.begin(), plan.warnings.end());
  job.detail.clear_planned_memory();
  job.detail.clear_measured_memory();
  if (CapabilitiesOf(job.options.backend).computes) {
    const JobSpec spec = JobOnBackend(job.spec, job.options.backend);
    for (const RankMemory& planned : MemoryOfRanks(spec, plan.plan, plan.schedule)) {
      *job.detail.add_planned_memory() = ToProto(planned);
    }
  }
}

void NoteEpochBegun(Job& job, const std::string& cause, int64_t unix_now_ns) {
  const Epoch& epoch = *job.run->life().epoch;
  job.detail.mutable_summary()->set_epoch(epoch.number);
  v1::EpochSummary& summary = *job.detail.add_epochs();
  summary.set_number(epoch.number);
  summary.set_first_iteration(epoch.first_iteration);
  summary.set_begun_unix_time_ns(unix_now_ns);
  summary.set_cause(Shown(cause));
  for (const std::string& site : SitesOf(job.run->life().plan->plan)) {
    summary.add_sites(site);
  }
  NoteCheckpoints(job, nullptr, unix_now_ns);
  if (v1::RecoverySummary* recovery = OpenRecovery(job); recovery != nullptr) {
    recovery->set_first_iteration(epoch.first_iteration);
    recovery->set_source(epoch.from_checkpoint.has_value() ? "checkpoint"
                         : epoch.first_iteration == 0      ? "start"
                                                           : "memory");
  }
}

void NoteLoss(Job& job, const Reaction::Loss& loss, bool begins, int64_t unix_now_ns) {
  NoteCheckpoints(job, nullptr, unix_now_ns);
  auto& all = *job.detail.mutable_recoveries();
  if (begins || all.empty()) {
    v1::RecoverySummary& recovery = *all.Add();
    recovery.set_kind(loss.kind);
    recovery.set_cause(Shown(loss.cause));
    recovery.set_begun_unix_time_ns(unix_now_ns);
    recovery.set_reached_iteration(job.run->crew().reached);
    recovery.set_lost_ns(loss.stalled_ns);
    all.DeleteSubrange(0, std::max(0, all.size() - kMaxRecoveries));
  }
  auto& workers = *all.rbegin()->mutable_workers();
  for (const LostWorker& each : loss.workers) {
    v1::LostWorker& lost = *workers.Add();
    lost.set_site(each.worker.site);
    lost.set_node(each.worker.node);
    lost.set_device(each.worker.device);
    lost.set_cause(Shown(each.cause));
    lost.set_of_node(each.of_node || each.of_peer);
    lost.set_unix_time_ns(unix_now_ns);
  }
  workers.DeleteSubrange(0, std::max(0, workers.size() - kMaxLostWorkers));
}

void NoteRecovered(Job& job, int64_t unix_now_ns) {
  if (v1::RecoverySummary* recovery = OpenRecovery(job); recovery != nullptr) {
    recovery->set_ended_unix_time_ns(unix_now_ns);
    if (recovery->source().empty()) {  // no epoch has begun: it rests
      recovery->set_first_iteration(job.run->life().ended_at.value_or(recovery->reached_iteration()));
    }
    const std::optional<v1::Measured> measured = job.iterations().Measure(TokensPerIteration(job));
    const int64_t repeated = std::max<int64_t>(0, recovery->reached_iteration() - recovery->first_iteration());
    recovery->set_lost_ns(recovery->lost_ns() + std::max<int64_t>(0, unix_now_ns - recovery->begun_unix_time_ns()) +
                          repeated * (measured.has_value() ? measured->iteration_ns() : 0));
  }
}

void NoteEpochEnded(Job& job, int64_t next_iteration, int64_t unix_now_ns) {
  if (job.detail.epochs_size() > 0 && job.detail.epochs().rbegin()->ended_unix_time_ns() == 0) {
    v1::EpochSummary& summary = *job.detail.mutable_epochs()->rbegin();
    summary.set_next_iteration(next_iteration);
    summary.set_ended_unix_time_ns(unix_now_ns);
  }
}

void NoteCheckpoints(Job& job, const ListedCheckpoint* complete, int64_t unix_now_ns) {
  const auto earlier = std::exchange(*job.detail.mutable_checkpoints(), {});
  for (const ListedCheckpoint& listed : job.run->life().checkpoints.listed) {
    v1::CheckpointSummary& summary = *job.detail.add_checkpoints();
    summary = ToProto(listed);
    const auto known = std::ranges::find_if(earlier, [&](const v1::CheckpointSummary& each) {
      return each.identity().SerializeAsString() == summary.identity().SerializeAsString();
    });
    const bool is_new = known == earlier.end() || (complete != nullptr && complete->identity == listed.identity);
    summary.set_unix_time_ns(is_new ? unix_now_ns : known->unix_time_ns());
    summary.set_replicated_unix_time_ns(!is_new && known->replicated_unix_time_ns() > 0
                                            ? known->replicated_unix_time_ns()
                                        : listed.is_copied() ? unix_now_ns
                                                             : 0);
  }
}

void NoteEvaluations(Job& job, std::vector<v1::EvaluationSummary> evaluations) {
  auto& all = *job.detail.mutable_evaluations();
  for (v1::EvaluationSummary& each : evaluations) {
    *all.Add() = std::move(each);
  }
  all.DeleteSubrange(0, std::max(0, all.size() - kMaxEvaluations));
}

void KeepCurve(const Job& old, int64_t below, Job& job) {
  const IterationLog& log = old.iterations();
  std::vector<v1::IterationSummary> kept;
  for (int64_t i = log.oldest(); i < std::min(below, log.next()); ++i) {
    kept.push_back(log.Get(i));
  }
  for (const v1::EvaluationSummary& each : old.detail.evaluations()) {
    if (each.iteration() <= below) {
      *job.detail.add_evaluations() = each;
    }
  }
  job.stored.has_more = old.stored.has_more;
  job.stored.next = std::min(below, old.stored.next);  // the store's rows may have a gap before `below`, too
  // The curve is empty where a gap lies before `below`.
  job.past = IterationLog::Restore(0, kept.size(), 0, below,
                                   log.next() < below ? std::vector<v1::IterationSummary>() : std::move(kept), {});
}

int64_t LastCheckpoint(const v1::JobDetail& detail) {
  int64_t last = 0;
  for (const v1::CheckpointSummary& each : detail.checkpoints()) {
    last = std::max(last, static_cast<int64_t>(each.identity().iteration()));
  }
  return last;
}

JobLife::Earlier EarlierOf(const Job& job) {
  JobLife::Earlier earlier{.epochs = job.detail.summary().epoch(),
                           .last_worker = LastWorkerOf(job),
                           .told = job.iterations().next() > 0,
                           .micro_batch_size = job.detail.plan().micro_batch_size(),
                           .sequence_length = job.detail.plan().sequence_length()};
  if (job.run != nullptr) {
    earlier.checkpoints = job.run->life().checkpoints;
  } else {
    earlier.checkpoints = job.checkpoints;
    earlier.checkpoints.listed = ListedOf(job.detail).value_or(std::vector<ListedCheckpoint>{});
  }
  return earlier;
}

bool ForgetMark(Now now, Job& job, const NodeKey& node) {
  return job.run == nullptr ? job.checkpoints.marked.erase(node) > 0 : job.run->News(now.ns).OnReplaced(node);
}

uint64_t LastWorkerOf(const Job& job) {
  if (job.run != nullptr && !job.run->crew().later.empty()) {  // workers live, and nobody knows which
    return std::min(job.last_stored_worker, job.run->life().incarnation);
  }
  return job.run == nullptr ? job.last_worker : std::max(job.last_worker, job.run->life().last_incarnation());
}

v1::JobRecord RecordOf(const Job& job) {
  v1::JobRecord record;
  if (IsFinal(job.state())) {
    record.set_last_worker(LastWorkerOf(job));
    return record;
  }
  if (job.run != nullptr) {
    record = job.run->life().Record();
  } else {
    job.checkpoints.Write(record);
  }
  record.set_last_worker(LastWorkerOf(job));
  record.set_closing(job.closing);
  for (const NodeKey& node : job.home) {
    *record.add_home() = ToProto(node);
  }
  for (const NodeKey& node : job.before) {
    *record.add_before() = ToProto(node);
  }
  return record;
}

void NoteMemory(Job& job) { FillMemory(job, job.detail); }

void SetMeasured(Job& job) { FillFigures(job, job.detail); }

v1::JobSummary SummaryOf(const Job& job) {
  v1::JobSummary summary = job.detail.summary();
  summary.set_name(RunNameOf(job.name()).name);
  FillLive(job, summary);
  return summary;
}

v1::JobDetail DetailOf(const Job& job) {
  v1::JobDetail detail = job.detail;
  detail.mutable_summary()->set_name(RunNameOf(job.name()).name);
  if (job.run == nullptr) {
    FillLive(job, *detail.mutable_summary());  // the rest was measured when the run ended
  } else {
    FillFigures(job, detail);
  }
  return detail;
}

v1::JobDetail OutcomeOf(const Job& job) {
  v1::JobDetail outcome = job.detail;
  FillMemory(job, outcome);
  outcome.clear_manifest();
  outcome.clear_run();
  outcome.clear_transitions();
  return outcome;
}

int64_t TokensPerIteration(const Job& job) {
  const v1::Plan& plan = job.detail.plan();
  return job.options.explicit_costs.has_value()
             ? plan.micro_batch_size() * plan.sequence_length() * plan.micro_batches()
             : job.spec.training.tokens_per_iteration;
}

}  // namespace geopipe
