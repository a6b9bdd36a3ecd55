#include "coordinator/core/unknown_workers.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "coordinator/core/run/worker_commands.h"

namespace geopipe {

// Numbers ascend in the life of a store, so those beyond what it knew of a job when this process began are of a later
// run than it knew of. No number beyond its own start was given by anybody else than this process, which remembers.
bool UnknownWorkers::IsOver(const v1::WorkerId& worker) const {
  const Job* job = jobs_.Find(worker.job());
  const Stray* stray = strays_.Find(KeyOf(worker));
  if (stray != nullptr && stray->unknown && stray->incarnation == worker.incarnation()) {
    return false;
  }
  return worker.incarnation() > options_.incarnation ||
         (job != nullptr && worker.incarnation() <= job->last_stored_worker);
}

bool UnknownWorkers::OnListed(Now now, const NodeKey& node, const v1::WorkerId& worker) {
  const WorkerKey key = KeyOf(worker);
  if (key.node_key() != node || IsOver(worker)) {
    Stop({node.site, node.node, key.device}, worker.job(), worker.incarnation(),
         "the coordinator does not know this worker's job as running");
    return false;
  }
  const Stray* known = strays_.Find(key);
  if (known == nullptr || known->incarnation != worker.incarnation()) {
    outbox_.Log(
        LogLevel::kWarning, worker.job(),
        "worker {} is of a run that this coordinator does not know, whose job store may be older than it is: it "
        "is left alone, and stopped in {}; `geopipectl stop-stray {}` stops it now",
        DisplayName(key), FormatSeconds(Strays::kUnknownNs), DisplayName(node));
  }
  strays_.AddUnknown(now.ns, key, worker.job(), worker.incarnation(), membership_.Find(node)->incarnation);
  return true;
}

// The worker is named by its incarnation: a later run of that name may have workers there.
void UnknownWorkers::Stop(const WorkerKey& key, const std::string& job, uint64_t incarnation, const std::string& reason,
                          bool keeps_state) {
  agents_.Send(
      {key.node_key(), StopMessage(job, options_.run.stop_grace_ns, reason, {key.device}, incarnation, keeps_state)});
  if (const NodeRecord* node = membership_.Find(key.node_key()); node != nullptr) {
    strays_.OnOrdered(key, incarnation, node->incarnation, agents_.LastOrder(key.node_key()));
  }
}

void UnknownWorkers::GiveUp(const WorkerKey& key, const std::string& reason, bool keeps_state) {
  const Stray stray = *strays_.Find(key);
  if (const NodeRecord* node = membership_.Find(key.node_key()); node != nullptr && node->incarnation == stray.agent) {
    Stop(key, stray.job, stray.incarnation, reason, keeps_state);
  } else {
    strays_.GiveUp(key);
  }
}

// Another worker on the device is of a later run, or of another job.
void UnknownWorkers::LeaveAlone(Now now, const Job& job) {
  for (const auto& [key, facts] : job.run->crew().workers) {
    const NodeRecord* node = membership_.Find(key.node_key());
    const Stray* known = strays_.Find(key);
    const bool is_unseen = facts.sight == WorkerFacts::Sight::kUnseen && facts.stage != WorkerFacts::Stage::kStarting;
    const bool may_live = facts.stage != WorkerFacts::Stage::kEnded && !is_unseen && node != nullptr;
    if (job.run->life().Has(key) && may_live && (known == nullptr || !known->unknown)) {
      strays_.AddUnknown(now.ns, key, job.name(), facts.worker.incarnation, node->incarnation);
    }
  }
}

int64_t UnknownWorkers::StopOf(const std::string& job) {
  const std::vector<WorkerKey> workers = strays_.UnknownOf(job);
  for (const WorkerKey& key : workers) {
    GiveUp(key, "its run is given up for the state in the job store");
  }
  return std::ssize(workers);
}

void UnknownWorkers::OnTick(Now now) {
  for (const WorkerKey& key : strays_.Overdue(now.ns)) {
    const Stray stray = *strays_.Find(key);
    outbox_.Log(LogLevel::kWarning, stray.job, "worker {} is stopped: for {} nobody has known its run",
                DisplayName(key), FormatSeconds(now.ns - stray.noted_ns));
    GiveUp(key, "no coordinator has known its run for long", true);
  }
}

absl::StatusOr<v1::StopStrayResponse> UnknownWorkers::On(Now now, const StopStray& event) {
  const NodeKey node{event.site, event.node};
  v1::StopStrayResponse response;
  for (const WorkerKey& key : strays_.UnknownAt(node)) {
    const Stray stray = *strays_.Find(key);
    v1::StrayWorker& told = *response.add_strays();
    told.set_job(stray.job);
    told.set_device(key.device);
    told.set_age_ns(now.ns - stray.noted_ns);
    GiveUp(key, "stopped by request");
  }
  if (response.strays().empty()) {
    return absl::NotFoundError(fmt::format(
        "node {} has no worker of an unknown run; `geopipectl get sites` names those that do", DisplayName(node)));
  }
  return response;
}

}  // namespace geopipe
