#include "tests/simulation/ledger.h"

#include <algorithm>

namespace geopipe::simulation {

void Ledger::OnApplied(const std::string& job, bool resumes) {
  const uint64_t application = jobs_.size() + 1;
  JobTruth& truth = jobs_[application];
  truth.job = job;
  if (resumes) {
    truth.resumes = latest_.at(job);
    truth.newest_listed = jobs_.at(truth.resumes).newest_listed;
    truth.gaps = jobs_.at(truth.resumes).gaps;
  }
  latest_[job] = application;
  if (const auto found = forgotten_.find(job); found != forgotten_.end()) {
    found->second.iterations = 0;  // of the one before
  }
}

bool Ledger::LostBefore(const std::string& job, int64_t iteration) const {
  const JobTruth* truth = Find(job);
  if (truth == nullptr || truth->resumes == 0) {
    return false;
  }
  const bool in_gap = std::ranges::any_of(
      truth->gaps, [&](const auto& gap) { return gap.first < iteration && iteration <= gap.second; });
  if (in_gap || !were_excused_.contains(job)) {
    return in_gap;
  }
  int64_t listed = truth->newest_listed;
  for (uint64_t before = truth->resumes; before != 0; before = jobs_.at(before).resumes) {
    listed = std::max(listed, jobs_.at(before).newest_listed);
  }
  return iteration <= (truth->epoch > 0 ? truth->first : listed);
}

void Ledger::OnListed(const std::string& job, int64_t iteration) {
  JobTruth& truth = jobs_.at(latest_.at(job));
  truth.newest_listed = iteration;
}

void Ledger::OnRun(const std::string& job, uint64_t run) {
  RunTruth& truth = runs_[run];
  if (truth.application == 0) {
    truth.application = latest_.at(job);
  }
}

void Ledger::NoteState(JobTruth& job, uint64_t epoch, int64_t iteration, uint64_t lineage) {
  const uint64_t noted = job.states.try_emplace({epoch, iteration}, lineage).first->second;
  if (noted != lineage) {
    world_.Break(
        fmt::format("job {}: ranks of epoch {} have several states before iteration {}", job.job, epoch, iteration));
  }
}

void Ledger::OnEpochBegun(uint64_t run, uint64_t epoch, const RankBeginning& from) {
  RunTruth& truth = runs_[run];
  JobTruth& job = JobOf(truth);
  CheckChosen(job, run, epoch);
  if (secrets_.try_emplace({run, epoch}, from.secret).first->second != from.secret) {
    world_.Break(fmt::format("job {}: epoch {} of run {:x} is used twice", job.job, epoch, run));
  }
  if (epoch < truth.epoch) {
    world_.Break(fmt::format("job {}: a rank begins epoch {} after epoch {} had begun", job.job, epoch, truth.epoch));
  }
  if (epoch > truth.epoch) {
    const auto least = std::ranges::min_element(truth.next, {}, [](const auto& entry) { return entry.second; });
    if (truth.keeps && !truth.lost_memory && least != truth.next.end() && from.identity.iteration + 1 < least->second) {
      world_.Break(fmt::format("job {}: epoch {} begins with iteration {}, and all ranks had come to {} and kept it",
                               job.job, epoch, from.identity.iteration, least->second));
    }
    truth.epoch = epoch;
    truth.epoch_from = from.identity;
    truth.ranks = from.ranks;
  }
  if (from.identity != truth.epoch_from) {
    world_.Break(
        fmt::format("job {}: epoch {} begins with iteration {} of epoch {} and, on rank {}, with iteration {} "
                    "of epoch {}",
                    job.job, epoch, truth.epoch_from.iteration, truth.epoch_from.epoch, from.rank,
                    from.identity.iteration, from.identity.epoch));
  }
  const auto first = static_cast<size_t>(from.identity.iteration);
  if (epoch > job.epoch) {
    if (job.epoch == 0 && job.resumes != 0) {
      BeginJob(job, from);
    } else if (job.resumes != 0 && from.identity.iteration < job.first) {
      // It falls back on a checkpoint of the run before, older than the one that it began with; OnRestored judges it.
      BeginAt(job, from);
    }
    job.epoch = epoch;
    job.epoch_first = from.identity.iteration;
    if (first >= job.line.size() || job.line[first] != from.lineage) {
      world_.Break(fmt::format("job {}: epoch {} begins with a state before iteration {} that its ranks never had",
                               job.job, epoch, from.identity.iteration));
    }
    job.line.resize(std::min(job.line.size(), first + 1));
  }
  NoteState(job, epoch, from.identity.iteration, from.lineage);
  truth.next[from.rank] = from.identity.iteration;  // it may go back
  truth.progress_ns = job.progress_ns = world_.now_ns();
}

// Goes on from a checkpoint of an earlier application (OnRestored has seen which).
void Ledger::BeginJob(JobTruth& job, const RankBeginning& from) {
  if (from.identity.iteration < job.newest_listed && !disk_lost_ && !IsPassedOver(job, job.newest_listed)) {
    world_.Break(fmt::format("job {} goes on from iteration {}, and the checkpoint of iteration {} was listed", job.job,
                             from.identity.iteration, job.newest_listed));
  }
  BeginAt(job, from);
}

// A newer checkpoint that could not be read is still the one that the job is told to begin with.
void Ledger::BeginAt(JobTruth& job, const RankBeginning& from) {
  job.first = from.identity.iteration;
  if (job.first > job.newest_listed) {
    job.gaps.emplace_back(job.newest_listed, job.first);
  }
  job.told_from = std::max(job.first, job.unread.empty() ? 0 : job.unread.rbegin()->first);
  job.line.assign(static_cast<size_t>(job.first) + 1, from.lineage);
}

// One that cannot be read for long is passed over, for nobody can tell whether it ever can. The latest try is not long
// ago: it is no reason to leave it once its node is well.
bool Ledger::IsPassedOver(const JobTruth& job, int64_t iteration) const {
  constexpr int64_t kLongNs = 20 * kSecondNs;
  constexpr int64_t kLatelyNs = 20 * kSecondNs;  // until the next try, and its epoch begins
  const auto found = job.unread.find(iteration);
  return found != job.unread.end() && found->second.last_ns - found->second.since_ns >= kLongNs &&
         world_.now_ns() - found->second.last_ns <= kLatelyNs;
}

void Ledger::OnUnread(uint64_t run, int64_t iteration) {
  constexpr int64_t kOnceMoreNs = 60 * kSecondNs;  // later, it is another trouble
  JobTruth::Unread& unread = JobOf(runs_[run]).unread[iteration];
  if (unread.last_ns == 0 || world_.now_ns() - unread.last_ns > kOnceMoreNs) {
    unread.since_ns = world_.now_ns();
  }
  unread.last_ns = world_.now_ns();
}

std::string Ledger::RefusedLately(const std::string& job) const {
  constexpr int64_t kLatelyNs = 5 * kSecondNs;
  const auto found = refused_.find(job);
  return found != refused_.end() && world_.now_ns() - found->second.second <= kLatelyNs ? found->second.first : "";
}

void Ledger::OnRestored(uint64_t run, uint64_t written_run, uint64_t written_epoch, int64_t iteration,
                        uint64_t lineage) {
  const RunTruth* writer = Find(written_run);
  uint64_t application = runs_[run].application;
  const JobTruth& job = jobs_.at(application);
  while (writer != nullptr && application != 0 && writer->application != application) {
    application = jobs_.at(application).resumes;
  }
  const auto has_state = [&](const JobTruth& truth) {
    const auto state = truth.states.find({written_epoch, iteration});
    return truth.job == job.job && state != truth.states.end() && state->second == lineage;
  };
  // Folders have checkpoints of what was forgotten, too, where a store was older.
  const bool was_forgotten = forgotten_.contains(job.job);
  if (was_forgotten && std::ranges::any_of(jobs_, [&](const auto& entry) { return has_state(entry.second); })) {
    return;
  }
  if (writer == nullptr || application == 0) {
    world_.Break(fmt::format("job {} goes on from a checkpoint of another job", job.job));
    return;
  }
  if (!has_state(jobs_.at(application))) {
    world_.Break(
        fmt::format("job {}: the checkpoint of iteration {} of epoch {} is not of the state that its ranks had",
                    job.job, iteration, written_epoch));
  }
}

void Ledger::OnIteration(uint64_t run, uint64_t epoch, int32_t rank, int64_t iteration, uint64_t lineage) {
  RunTruth& truth = runs_[run];
  JobTruth& job = JobOf(truth);
  if (epoch < job.epoch && iteration >= job.epoch_first) {
    world_.Break(fmt::format("job {}: rank {} finishes iteration {} in epoch {}, which epoch {} begins with {}",
                             job.job, rank, iteration, epoch, job.epoch, job.epoch_first));
  }
  int64_t& next = truth.next[rank];
  if (iteration != next) {
    world_.Break(fmt::format("job {}: rank {} finishes iteration {} and its last one was {}", job.job, rank, iteration,
                             next - 1));
  }
  next = iteration + 1;
  truth.reached = std::max(truth.reached, next);
  NoteState(job, epoch, next, lineage);
  if (static_cast<size_t>(next) == job.line.size() && epoch == job.epoch) {
    job.line.push_back(lineage);
  }
  truth.progress_ns = job.progress_ns = world_.now_ns();
  ++iterations_;
}

// --- An older store -----------------------------------------------------------------------------------------------

void Ledger::OnOlderStore(const std::string& job, Older older) {
  Forgotten& forgotten = forgotten_[job];
  older.forgotten.outrun = older.forgotten.outrun || forgotten.outrun;
  older.forgotten.iterations = std::max(older.forgotten.iterations, forgotten.iterations);
  forgotten = std::move(older.forgotten);
  if (older.application == 0) {
    return;  // the store does not know the job, or that it is not over
  }
  latest_[job] = older.application;
  if (!older.goes_on) {
    // The numbers behind the store's may be used again: nobody is left who could tell of them.
    std::erase_if(secrets_, [&](const auto& entry) {
      return entry.first.first == older.run && entry.first.second > older.epoch;
    });
    OnGivenUp(job, older.run, older.epoch);
    if (older.run != 0) {
      runs_[older.run].epoch = older.epoch;
    }
  }
}

// The job goes on as if it had been applied again, from what the store knows.
void Ledger::OnGivenUp(const std::string& job, uint64_t run, uint64_t epoch) {
  const uint64_t from = latest_.at(job);
  const uint64_t application = jobs_.size() + 1;
  JobTruth& truth = jobs_[application];
  truth.job = job;
  truth.resumes = from;
  truth.progress_ns = world_.now_ns();
  truth.states = jobs_.at(from).states;
  std::erase_if(truth.states, [&](const auto& entry) { return entry.first.first > epoch; });
  latest_[job] = application;
  if (run != 0) {
    RunTruth& live = runs_[run];
    live.application = application;
    live.next.clear();
    live.lost_memory = true;
  }
}

// No epoch begins by itself beside workers that are left, or with them.
void Ledger::CheckChosen(const JobTruth& job, uint64_t run, uint64_t epoch) {
  const Forgotten* forgotten = FindForgotten(job.job);
  if (forgotten == nullptr || (forgotten->begun.first == run && epoch <= forgotten->begun.second)) {
    return;
  }
  for (const auto& [incarnation, left] : forgotten->left) {
    if (hears(left.site)) {
      world_.Break(
          fmt::format("job {}: epoch {} of run {:x} begins, nobody has chosen, and worker {:x} at {} is of a "
                      "run or an epoch that the store did not know",
                      job.job, epoch, run, incarnation, left.site));
    }
  }
}

void Ledger::OnStopOrdered(const std::string& job, uint64_t incarnation) {
  stop_ordered_.insert(incarnation);
  const Forgotten* forgotten = FindForgotten(job);
  if (forgotten != nullptr && forgotten->left.contains(incarnation) && !excused(job)) {
    world_.Break(fmt::format("worker {:x} of job {} is stopped, and its run was well: the store is older than it",
                             incarnation, job));
  }
}

void Ledger::OnFailed(const std::string& job, uint64_t run) {
  if (const auto found = forgotten_.find(job); found != forgotten_.end()) {
    std::erase_if(found->second.left, [&](const auto& entry) { return entry.second.run == run; });
  }
}

void Ledger::OnSelfEnded(const std::string& job, uint64_t incarnation) {
  if (const JobTruth* truth = Find(job); truth != nullptr && !stop_ordered(incarnation)) {
    untold_[job] = std::max(untold_[job], std::ssize(truth->line) - 1);
  }
}

void Ledger::OnGone(const std::string& job, uint64_t incarnation) {
  if (const auto found = forgotten_.find(job); found != forgotten_.end()) {
    found->second.left.erase(incarnation);
  }
}

void Ledger::OnDeviceGiven(const std::string& job, const std::string& site, int32_t device) {
  for (const auto& [other, forgotten] : forgotten_) {
    for (const auto& [incarnation, left] : forgotten.left) {
      if (left.site == site && left.device == device) {
        world_.Break(
            fmt::format("job {} is given device {} of {}, where worker {:x} of job {} is, which the store did "
                        "not know",
                        job, device, site, incarnation, other));
      }
    }
  }
}

}  // namespace geopipe::simulation
