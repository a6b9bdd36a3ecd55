#include "tests/simulation/store_rules.h"

#include <algorithm>
#include <array>

#include "coordinator/core/run/kept_name.h"
#include "runtime/manifest/job_manifest.h"

namespace geopipe::simulation {
namespace {

std::string NameOf(const v1::CheckpointSummary& summary) {
  return fmt::format("the checkpoint of iteration {} of epoch {}", summary.identity().iteration(),
                     summary.identity().epoch());
}

CheckpointIdentity IdentityOf(const v1::CheckpointSummary& summary) {
  return {.iteration = summary.identity().iteration(),
          .incarnation = summary.identity().incarnation(),
          .epoch = summary.identity().epoch(),
          .sequence_length = summary.identity().sequence_length()};
}

// Copies of the checkpoint's parts, not counting those where they were written.
int64_t Copies(const v1::CheckpointSummary& summary) {
  int64_t copies = 0;
  for (const v1::CheckpointPart& part : summary.parts()) {
    copies += part.holders_size() - 1;
  }
  return copies;
}

const v1::CheckpointSummary* FindSame(const v1::JobDetail& detail, const v1::CheckpointSummary& summary) {
  const auto found = std::ranges::find_if(detail.checkpoints(), [&](const v1::CheckpointSummary& each) {
    return IdentityOf(each) == IdentityOf(summary) && each.unix_time_ns() == summary.unix_time_ns();
  });
  return found == detail.checkpoints().end() ? nullptr : &*found;
}

}  // namespace

void StoreRules::OnInsert(const v1::JobDetail& job, const std::string& path) {
  const std::string& name = job.summary().name();
  const int64_t number = applied_[name].number + 1;
  if (job.summary().run() != number) {
    world_.Break(fmt::format("job {} is applied for the {}th time, as its run {}", name, number, job.summary().run()));
  }
  applied_[name] = {.path = path, .number = number, .moves_ns = {}};
  ledger_.OnApplied(name, job.run().resume());
}

// A job whose name is taken is over, and kept under its number.
void StoreRules::OnReplaced(const StoredJob* old, std::string_view keep_as, const std::vector<StoredJob>& jobs) {
  if (old == nullptr) {
    return;
  }
  const v1::JobSummary& summary = old->detail.summary();
  const bool is_taken =
      std::ranges::any_of(jobs, [&](const StoredJob& job) { return job.detail.summary().name() == keep_as; });
  if (!IsFinal(summary.state()) || keep_as != KeptName(summary.name(), summary.run()) || is_taken) {
    world_.Break(fmt::format("job {} is replaced: its run {}, which is {}, is kept as {}", summary.name(),
                             summary.run(), JobStateName(summary.state()), std::string(keep_as)));
  }
}

void StoreRules::OnWritten(std::string_view job) {
  if (IsKeptName(job)) {
    world_.Break(fmt::format("{} is written, which is final for ever", DisplayName(RunNameOf(job))));
  }
}

void StoreRules::OnOutcome(const std::string& job, const v1::JobDetail& before, const v1::JobDetail& now) {
  for (const v1::CheckpointSummary& summary : now.checkpoints()) {
    const v1::CheckpointSummary* same = FindSame(before, summary);
    if (same == nullptr) {
      CheckListed(job, summary);
      ledger_.OnListed(job, summary.identity().iteration());
    }
    if (Copies(summary) > (same == nullptr ? 0 : Copies(*same))) {
      CheckCopied(job, summary);
    }
  }
  CheckEvaluations(job, before, now);
}

// Each is told once and stays, in order, with its loss unless its report went with a worker.
void StoreRules::CheckEvaluations(const std::string& job, const v1::JobDetail& before, const v1::JobDetail& now) {
  for (int i = 0; i < before.evaluations_size(); ++i) {
    if (i >= now.evaluations_size() ||
        now.evaluations(i).SerializeAsString() != before.evaluations(i).SerializeAsString()) {
      world_.Break(fmt::format("job {}: the evaluation after {} iterations is told otherwise, or no more", job,
                               before.evaluations(i).iteration()));
      return;
    }
  }
  for (int i = before.evaluations_size(); i < now.evaluations_size(); ++i) {
    const v1::EvaluationSummary& each = now.evaluations(i);
    const bool in_order = i == 0 || each.iteration() > now.evaluations(i - 1).iteration();
    const bool right = each.incomplete()
                           ? ledger_.excused(job) || ledger_.WentUntold(job, each.iteration()) ||
                                 ledger_.LostBefore(job, each.iteration()) || ledger_.MayLack(job, each.iteration() - 1)
                           : each.loss() == ValidationLossOf(each.iteration());
    if (!in_order || !right) {
      world_.Break(fmt::format("job {}: the evaluation after {} iterations {}", job, each.iteration(),
                               !in_order           ? "is told twice, or late"
                               : each.incomplete() ? "is lost, and no worker was"
                                                   : "has another loss"));
    }
  }
}

// A job that is completed has told all its evaluations.
void StoreRules::CheckEvaluated(const StoredJob& job) {
  const std::string& name = job.detail.summary().name();
  const absl::StatusOr<JobSpec> spec = ParseManifest(job.detail.manifest());
  const int64_t end = spec->training.iterations;
  const JobTruth* truth = ledger_.Find(name);
  for (int64_t iteration = truth == nullptr ? 0 : truth->told_from; iteration <= end; ++iteration) {
    const bool told = std::ranges::any_of(
        job.detail.evaluations(), [&](const v1::EvaluationSummary& each) { return each.iteration() == iteration; });
    if (spec->evaluation.IsDue(iteration, end) && !told) {
      world_.Break(
          fmt::format("job {} is completed, and the evaluation after {} iterations is not told", name, iteration));
    }
  }
}

const CheckpointFolder* StoreRules::FolderAt(const std::string& site, const std::string& path,
                                             int64_t iteration) const {
  return disks_.at(site)->Find(path, iteration);
}

// Each node of a part has the manifest and all that its ranks have written, and all nodes together every unit of one
// state.
void StoreRules::CheckListed(const std::string& job, const v1::CheckpointSummary& summary) {
  const std::string& path = applied_.at(job).path;
  std::set<std::string> found;
  std::set<std::string> wanted;
  std::set<uint64_t> lineages;
  for (const v1::CheckpointPart& part : summary.parts()) {
    const std::string& site = part.holders(0).site();
    if (disks_.at(site)->lost()) {
      return;  // nobody can know what was there
    }
    const CheckpointFolder* folder = FolderAt(site, path, summary.identity().iteration());
    const CheckpointManifest* manifest = folder == nullptr ? nullptr : folder->Find(IdentityOf(summary));
    if (manifest == nullptr) {
      world_.Break(fmt::format("job {}: {} is listed, and {} has no such manifest", job, NameOf(summary), site));
      return;
    }
    disks_.at(site)->NoteListed(path);
    wanted.insert(manifest->files.begin(), manifest->files.end());
    for (const auto& [name, file] : folder->files) {
      if (file.writer == site) {
        found.insert(name);
        lineages.insert(file.lineage);
      }
    }
  }
  if (!std::ranges::includes(found, wanted) || wanted.size() != kUnits || lineages.size() != 1) {
    world_.Break(fmt::format("job {}: {} is listed, and {} files of {} states are there of {} that its manifest names",
                             job, NameOf(summary), found.size(), lineages.size(), wanted.size()));
  }
}

// Every holder has all that the first of them has written, and holders are at two sites or more.
void StoreRules::CheckCopied(const std::string& job, const v1::CheckpointSummary& summary) {
  const std::string& path = applied_.at(job).path;
  for (const v1::CheckpointPart& part : summary.parts()) {
    const std::string& writer = part.holders(0).site();
    std::set<std::string> sites;
    for (const v1::NodeName& holder : part.holders()) {
      sites.insert(holder.site());
      if (disks_.at(holder.site())->lost() || disks_.at(writer)->lost()) {
        return;
      }
      const CheckpointFolder* folder = FolderAt(holder.site(), path, summary.identity().iteration());
      const CheckpointFolder* written = FolderAt(writer, path, summary.identity().iteration());
      if (folder == nullptr || written == nullptr || folder->Find(IdentityOf(summary)) == nullptr) {
        world_.Break(fmt::format("job {}: {} is listed as copied, and {} has it not", job, NameOf(summary),
                                 folder == nullptr ? holder.site() : writer));
        return;
      }
      for (const auto& [name, file] : written->files) {
        if (file.writer == writer && !folder->files.contains(name)) {
          world_.Break(fmt::format("job {}: {} is listed as copied, and {} has no {}", job, NameOf(summary),
                                   holder.site(), name));
        }
      }
    }
    if (sites.size() < 2 && summary.replicated_unix_time_ns() != 0) {
      world_.Break(fmt::format("job {}: {} is listed as copied, and what {} has written is at one site", job,
                               NameOf(summary), writer));
    }
  }
}

void StoreRules::OnRecord(const StoredJob& job, const v1::JobRecord& now, const std::vector<StoredJob>& jobs,
                          const std::set<std::string>& drained) {
  if (now.run_incarnation() == 0) {
    return;
  }
  const std::string& name = job.detail.summary().name();
  Applied& applied = applied_.at(name);
  if (now.run_incarnation() < applied.run) {
    world_.Break(fmt::format("job {}: run {:x} is stored after run {:x}", name, now.run_incarnation(), applied.run));
  }
  for (const v1::RecordedWorker& worker : now.crew()) {
    if (now.run_incarnation() > applied.run) {
      ledger_.OnDeviceGiven(name, worker.site(), worker.device());
    }
  }
  for (const v1::RecordedSite& site : now.sites()) {
    if (now.run_incarnation() > applied.run && drained.contains(site.name())) {
      world_.Break(fmt::format("job {} is given devices of {}, which is drained", name, site.name()));
    }
  }
  applied.run = now.run_incarnation();
  ledger_.OnRun(name, now.run_incarnation());
  if (now.has_epoch()) {
    CheckEpoch(job, now, applied);
  }
  CheckDevices(job, now, jobs);
}

// Epochs are numbered over all runs, and none starts over after iterations were reported.
void StoreRules::CheckEpoch(const StoredJob& job, const v1::JobRecord& now, Applied& applied) {
  const std::string& name = job.detail.summary().name();
  const v1::RecordedEpoch& epoch = now.epoch();
  epochs_.emplace(now.run_incarnation(), epoch.number());
  secrets_.emplace(epoch.number(), epoch.secret());
  if (epoch.number() < applied.epoch ||
      (epoch.number() == applied.epoch && applied.epoch_run != now.run_incarnation())) {
    world_.Break(fmt::format("job {}: epoch {} of run {:x} comes after epoch {} of run {:x}", name, epoch.number(),
                             now.run_incarnation(), applied.epoch, applied.epoch_run));
  }
  if (epoch.number() == applied.epoch) {
    return;
  }
  const bool moved = applied.epoch_run != 0 && applied.epoch_run != now.run_incarnation();
  applied.epoch = epoch.number();
  applied.epoch_run = now.run_incarnation();
  if (epoch.first_iteration() == 0 && moved && job.next_iteration > 0) {
    world_.Break(fmt::format("job {} begins anew elsewhere, and {} iterations were told", name, job.next_iteration));
  }
}

// `job` is among `jobs`.
void StoreRules::CheckDevices(const StoredJob& job, const v1::JobRecord& now, const std::vector<StoredJob>& jobs) {
  if (job.detail.summary().state() == v1::JOB_STATE_PENDING) {
    return;  // the record is that of the run that was
  }
  for (const StoredJob& other : jobs) {
    const JobState state = other.detail.summary().state();
    if (&other == &job || IsFinal(state) || state == v1::JOB_STATE_PENDING) {
      continue;
    }
    for (const v1::RecordedWorker& worker : now.crew()) {
      const bool both = !worker.stopped() && std::ranges::any_of(other.record.crew(), [&](const auto& each) {
        return !each.stopped() && each.site() == worker.site() && each.device() == worker.device();
      });
      if (both) {
        world_.Break(fmt::format("jobs {} and {} both have device {} of {}", job.detail.summary().name(),
                                 other.detail.summary().name(), worker.device(), worker.site()));
      }
    }
  }
}

// A job that ends with a checkpoint has nothing behind it but what was lost with a rank's memory.
void StoreRules::CheckSaved(const StoredJob& job) {
  const int64_t saved = job.detail.checkpoints_size() == 0
                            ? 0
                            : static_cast<int64_t>(job.detail.checkpoints().rbegin()->identity().iteration());
  const JobTruth* truth = ledger_.Find(job.detail.summary().name());
  const RunTruth* run = ledger_.Find(job.record.run_incarnation());
  const int64_t reached = truth == nullptr || truth->epoch == 0 ? saved : std::ssize(truth->line) - 1;
  const bool is_kept = run == nullptr || (run->keeps && !run->lost_memory);
  if (saved != job.record.epoch().next_iteration() || (is_kept ? saved != reached : saved > reached)) {
    world_.Break(
        fmt::format("job {} has ended with a checkpoint, which is of iteration {}, and its record says {}; "
                    "its ranks have come to {}",
                    job.detail.summary().name(), saved, job.record.epoch().next_iteration(), reached));
  }
}

// A job that leaves its devices again and again, and finishes nothing between, waits in between.
void StoreRules::OnTransition(const StoredJob& job, JobState to, const std::string& cause) {
  // Limits on restarts within seconds (the first at once, then after at least half of 1, 2, 4, 8 s) and within minutes
  // (delays of at most 60 s).
  constexpr std::array<std::pair<size_t, int64_t>, 2> kMost = {{{6, 7 * kSecondNs}, {12, 120 * kSecondNs}}};
  if (to == v1::JOB_STATE_CANCELLED && cause.ends_with("is in a checkpoint")) {
    CheckSaved(job);
  }
  if (to == v1::JOB_STATE_COMPLETED) {
    CheckEvaluated(job);
  }
  if (to != v1::JOB_STATE_PENDING || job.detail.epochs_size() == 0) {
    return;
  }
  const std::string& name = job.detail.summary().name();
  std::deque<int64_t>& moves_ns = applied_.at(name).moves_ns;
  const JobTruth* truth = ledger_.Find(name);
  const int64_t progress_ns = truth == nullptr ? 0 : truth->progress_ns;
  std::erase_if(moves_ns, [&](int64_t at_ns) { return at_ns < progress_ns; });
  moves_ns.push_back(world_.now_ns());
  for (const auto& [most, within_ns] : kMost) {
    if (moves_ns.size() >= most && moves_ns.back() - moves_ns[moves_ns.size() - most] < within_ns) {
      world_.Break(fmt::format("job {} leaves its devices again and again, and does not wait: {}", name, cause));
    }
  }
}

}  // namespace geopipe::simulation
