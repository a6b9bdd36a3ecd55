#include "tests/simulation/older_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "coordinator/core/run/job_state.h"

namespace geopipe::simulation {
namespace {

// The job has a run in the record.
bool HasRun(const StoredJob* job) {
  return job != nullptr && !IsFinal(job->detail.summary().state()) &&
         job->detail.summary().state() != v1::JOB_STATE_PENDING;
}

const v1::RecordedWorker* FindWorker(const StoredJob& job, const v1::WorkerId& id) {
  const auto found = std::ranges::find_if(job.record.crew(), [&](const v1::RecordedWorker& each) {
    return each.site() == id.site() && each.device() == id.device() && !each.stopped();
  });
  return found == job.record.crew().end() ? nullptr : &*found;
}

bool Serves(const StoredJob* job, const v1::WorkerId& id) {
  const v1::RecordedWorker* worker = HasRun(job) ? FindWorker(*job, id) : nullptr;
  return worker != nullptr && worker->incarnation() == id.incarnation() && !worker->lost();
}

}  // namespace

void OlderStore::Copy(int64_t name) {
  Stored& copy = copies_[name] = {.jobs = disk_.jobs,
                                  .links = disk_.links,
                                  .drained = disk_.drained,
                                  .incarnation = disk_.incarnation,
                                  .applied = disk_.rules().applied(),
                                  .applications = {}};
  for (const StoredJob& job : disk_.jobs) {
    const std::string& each = job.detail.summary().name();
    copy.applications[each] = ledger_.ApplicationOf(each);
  }
}

void OlderStore::PutBack(int64_t name) {
  const Stored& copy = copies_.at(name);
  const std::vector<StoredJob> before = std::exchange(disk_.jobs, copy.jobs);
  disk_.links = copy.links;
  disk_.drained = copy.drained;
  disk_.incarnation = copy.incarnation;
  disk_.rules().OnOlderStore(copy.applied);
  for (const std::unique_ptr<Node>& node : nodes_) {
    node->checkpoints().ForgetListed();  // folders may have been marked since
    node->checkpoints().is_marked_by_people = true;
  }
  for (const auto& [job, each] : user_.jobs()) {
    const auto found =
        std::ranges::find_if(before, [&](const StoredJob& stored) { return stored.detail.summary().name() == job; });
    const auto application = copy.applications.find(job);
    Compare(job, found == before.end() ? nullptr : &*found,
            application == copy.applications.end() ? 0 : application->second);
  }
  user_.OnOlderStore();
}

void OlderStore::Compare(const std::string& job, const StoredJob* before, uint64_t application) {
  const StoredJob* now = disk_.Find(job);
  Ledger::Older older;
  if (HasRun(now)) {
    older.run = now->record.run_incarnation();
    older.epoch = now->record.epoch().number();
    older.application = ledger_.ApplicationOfRun(older.run);
  } else if (now != nullptr && !IsFinal(now->detail.summary().state())) {
    older.application = application;
    older.epoch = now->detail.summary().epoch();
  }
  if (const RunTruth* truth = ledger_.Find(older.run); truth != nullptr) {
    older.forgotten.iterations = truth->reached;
  }
  if (HasRun(before)) {
    older.forgotten.begun = {before->record.run_incarnation(), before->record.epoch().number()};
  }
  const Forgotten* earlier = ledger_.FindForgotten(job);
  for (const std::unique_ptr<Node>& node : nodes_) {
    for (const auto& [pid, worker] : node->workers()) {
      const v1::WorkerId& id = worker->id();
      if (id.job() != job || !worker->process()->alive) {
        continue;
      }
      const v1::WorkerStatus status = worker->status();
      const bool of_run = older.run != 0 && (Serves(now, id) || status.run_incarnation() == older.run);
      const bool is_known = of_run && Serves(now, id) && status.epoch() <= older.epoch;
      const bool was_left = earlier != nullptr && earlier->left.contains(id.incarnation());
      older.goes_on = older.goes_on || (of_run && !ledger_.stop_ordered(id.incarnation()));
      if (!is_known && (Serves(before, id) || was_left)) {
        older.forgotten.left[id.incarnation()] = {
            .site = id.site(), .device = id.device(), .run = status.run_incarnation()};
        older.forgotten.outrun = true;
      }
    }
  }
  world_.Trace("job {}: the store knows {:x}, epoch {}, of application {}; {} workers are left, {}", job, older.run,
               older.epoch, older.application, older.forgotten.left.size(),
               older.goes_on ? "some of its own" : "none of its own");
  ledger_.OnOlderStore(job, std::move(older));
}

}  // namespace geopipe::simulation
