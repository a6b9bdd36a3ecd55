#include "coordinator/core/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/wire/control_wire.h"

namespace geopipe {
namespace {

std::vector<Job*> ValuesOf(const std::map<uint64_t, Job*>& jobs) {
  std::vector<Job*> values;
  values.reserve(jobs.size());
  for (const auto& [sequence, job] : jobs) {
    values.push_back(job);
  }
  return values;
}

}  // namespace

Job* Jobs::Find(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

absl::StatusOr<Job*> Jobs::Named(const std::string& name, int64_t run) const {
  const bool can_be = !IsKeptName(name);
  if (Job* job = can_be ? Find(name) : nullptr; job != nullptr && (run == 0 || run == job->number())) {
    return job;
  }
  if (Job* job = can_be && run > 0 ? Find(KeptName(name, run)) : nullptr; job != nullptr) {
    return job;
  }
  return absl::NotFoundError(
      run == 0 ? fmt::format("there is no job \"{}\"; `geopipectl get jobs` lists them", name)
               : fmt::format("there is no run {} of job \"{}\", or it is kept no more; `geopipectl get jobs --all` "
                             "lists those that are",
                             run, name));
}

std::vector<Job*> Jobs::KeptOf(const std::string& name) const {
  std::vector<Job*> kept;
  const std::string prefix = name + "@";
  for (auto job = jobs_.lower_bound(prefix); job != jobs_.end() && job->first.starts_with(prefix); ++job) {
    kept.push_back(job->second.get());
  }
  std::ranges::sort(kept, {}, &Job::number);
  return kept;
}

int64_t Jobs::NextNumber(const std::string& name) const {
  const Job* latest = Find(name);
  const std::vector<Job*> kept = KeptOf(name);
  return 1 + std::max(latest == nullptr ? 0 : latest->number(), kept.empty() ? 0 : kept.back()->number());
}

Job* Jobs::OfRun(const std::string& name, uint64_t incarnation) const {
  Job* job = Find(name);
  return job != nullptr && job->run != nullptr && job->run->life().incarnation == incarnation ? job : nullptr;
}

Job* Jobs::OfWorker(const v1::WorkerId& worker) const {
  Job* job = Find(worker.job());
  return job != nullptr && job->run != nullptr && job->run->life().Has(KeyOf(worker), worker.incarnation()) ? job
                                                                                                            : nullptr;
}

Job* Jobs::Outrun(const NodeKey& node, const v1::WorkerId& worker, const v1::WorkerState& state) const {
  const WorkerKey key = KeyOf(worker);
  Job* job = Find(worker.job());
  return job != nullptr && job->run != nullptr && key.node_key() == node && job->run->life().Has(key) &&
                 worker.incarnation() > job->run->life().posts.at(key).incarnation &&
                 state.status().run_incarnation() == job->run->life().incarnation
             ? job
             : nullptr;
}

std::vector<Job*> Jobs::InOrder() const { return ValuesOf(by_sequence_); }

std::vector<Job*> Jobs::Running() const { return ValuesOf(running_); }

Job& Jobs::Add(std::unique_ptr<Job> job) {
  if (job->number() == 0) {
    job->detail.mutable_summary()->set_run(NextNumber(job->name()));
  }
  job->sequence = next_sequence_++;
  by_sequence_[job->sequence] = job.get();
  return *(jobs_[job->name()] = std::move(job));
}

std::unique_ptr<Job> Jobs::Remove(const std::string& name) {
  std::unique_ptr<Job> job = std::move(jobs_.extract(name).mapped());
  by_sequence_.erase(job->sequence);
  return job;
}

void Jobs::SetRun(Job& job, std::unique_ptr<JobRun> run) {
  job.run = std::move(run);
  if (job.run != nullptr) {
    running_[job.sequence] = &job;
  } else {
    running_.erase(job.sequence);
  }
}

void Jobs::PutBack(std::unique_ptr<Job> job) {
  const std::string name = job->name();
  by_sequence_[job->sequence] = job.get();
  jobs_[name] = std::move(job);
}

void Jobs::Rename(Job& job, const std::string& name) {
  auto entry = jobs_.extract(job.name());
  job.detail.mutable_summary()->set_name(name);
  entry.key() = name;
  jobs_.insert(std::move(entry));
}

void Jobs::KeepPast(Job& job) {
  job.kept_since = ++ends_;
  std::vector<Job*> kept = InOrder();
  std::erase_if(kept, [](const Job* each) { return each->kept_since == 0; });
  if (kept.size() > options_.finished_logs_kept) {
    Job& oldest = **std::ranges::min_element(kept, {}, &Job::kept_since);
    oldest.past.Forget();
    oldest.stored.has_more = true;
    oldest.kept_since = 0;
  }
}

void Jobs::RestorePast(Job& job, IterationsLoaded& event) {
  if (!job.stored.has_more || !event.iterations.ok()) {
    return;
  }
  const int64_t next = event.iterations->empty() ? job.past.next() : event.iterations->back().iteration() + 1;
  job.past = IterationLog::Restore(0, options_.run.max_iterations_kept, 0, next, *std::move(event.iterations), {});
  job.stored.has_more = false;
  if (IsFinal(job.state())) {
    KeepPast(job);
  } else if (job.run != nullptr && job.run->life().plan == nullptr && !job.has_trained()) {  // it goes on from them
    job.run->GoOnAfter(std::move(job.past));
  }
}

}  // namespace geopipe
