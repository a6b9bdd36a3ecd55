#include "tests/simulation/site_rules.h"

#include <algorithm>

namespace geopipe::simulation {
namespace {

// A checkpoint that is there without the site.
bool HasCopyElsewhere(const v1::JobDetail& detail, const std::string& site) {
  return std::ranges::any_of(detail.checkpoints(), [&](const v1::CheckpointSummary& checkpoint) {
    return checkpoint.parts_size() > 0 && std::ranges::all_of(checkpoint.parts(), [&](const v1::CheckpointPart& part) {
             return std::ranges::any_of(part.holders(), [&](const v1::NodeName& node) { return node.site() != site; });
           });
  });
}

}  // namespace

bool SiteRules::IsAt(const StoredJob& job, const std::string& site) {
  return std::ranges::any_of(
      job.record.crew(), [&](const v1::RecordedWorker& worker) { return worker.site() == site && !worker.stopped(); });
}

bool SiteRules::Trains(const UserJob& job, const StoredJob& stored) const {
  constexpr int64_t kLeft = 5;  // iterations
  return job.state == v1::JOB_STATE_RUNNING && !stored.record.moving() &&
         user_.NextOf(job.spec.name) + kLeft < job.spec.training.iterations;
}

void SiteRules::Lose(const std::string& site) {
  site_ = site;
  leaves_.clear();
  for (const auto& [name, job] : user_.jobs()) {
    const StoredJob* stored = disk_.Find(name);
    const CheckpointSpec& checkpoint = job.spec.checkpoint;
    if (stored != nullptr && recover_ && has_room_ && !checkpoint.path.empty() && checkpoint.replicate > 0 &&
        job.spec.on_site_loss == OnSiteLoss::kReplan && Trains(job, *stored) && IsAt(*stored, site) &&
        HasCopyElsewhere(stored->detail, site)) {
      leaves_[name] = job.runs;
    }
  }
}

void SiteRules::CheckLost() const {
  for (const auto& [name, runs] : leaves_) {
    const UserJob& job = user_.jobs().at(name);
    const StoredJob* stored = disk_.Find(name);
    // A worker of its own that no agent knows any more may live as long as one that is left alone.
    const bool awaits_end = job.state == v1::JOB_STATE_PENDING &&
                            job.detail.summary().cause().starts_with("waiting for its workers on ") &&
                            world_.now_ns() - job.entered_ns < plane_.GraceOf(name) + kLeaveNs;
    if (job.runs == runs && !awaits_end && (job.state != v1::JOB_STATE_RUNNING || IsAt(*stored, site_))) {
      world_.Break(fmt::format("job {} does not go on without {}, which is lost: {}: {}", name, site_,
                               JobStateName(job.state), job.detail.summary().cause()));
    }
  }
}

void SiteRules::Drain(const std::string& site) {
  site_ = site;
  leaves_.clear();
}

// Jobs that cannot leave say so.
void SiteRules::CheckDrained() const {
  for (const std::unique_ptr<Node>& node : nodes_) {
    for (const auto& [pid, worker] : node->workers()) {
      const std::string& name = worker->id().job();
      const UserJob& job = user_.jobs().at(name);
      const bool is_long = plane_.iteration_ns(name) > 10 * kSecondNs;  // it may be in an iteration yet
      const bool says_why = job.detail.summary().cause().find("which is drained") != std::string::npos;
      if (node->site() == site_ && worker->process()->alive && !says_why && !is_long &&
          job.state == v1::JOB_STATE_RUNNING && Trains(job, *disk_.Find(name))) {
        world_.Break(fmt::format("{} runs at a site that is drained: {}", worker->process()->name,
                                 job.detail.summary().cause()));
      }
    }
  }
}

void SiteRules::Leave(const std::string& site) {
  site_ = site;
  leaves_.clear();
  for (const auto& [name, job] : user_.jobs()) {
    const StoredJob* stored = disk_.Find(name);
    if (stored != nullptr && recover_ && has_room_ && !job.spec.checkpoint.path.empty() &&
        job.spec.on_site_loss == OnSiteLoss::kReplan && Trains(job, *stored) && IsAt(*stored, site) &&
        plane_.iteration_ns(name) < 10 * kSecondNs) {
      leaves_[name] = job.runs;
      recoveries_[name] = stored->detail.recoveries_size();
    }
  }
}

// Jobs that could leave have lost nothing.
void SiteRules::CheckLeft() const {
  for (const auto& [name, runs] : leaves_) {
    const UserJob& job = user_.jobs().at(name);
    const StoredJob* stored = disk_.Find(name);
    if (job.runs == runs && stored != nullptr && stored->detail.recoveries_size() > recoveries_.at(name)) {
      world_.Break(fmt::format("job {} has lost a worker of {}, which was told to go down: {}", name, site_,
                               stored->detail.recoveries().rbegin()->cause()));
    }
  }
}

void SiteRules::GiveBack() {
  returns_.clear();
  for (const auto& [name, job] : user_.jobs()) {
    const StoredJob* stored = disk_.Find(name);
    const std::vector<std::string>& sites = job.spec.placement.sites;
    if (stored != nullptr && recover_ && has_room_ && Trains(job, *stored) && !IsAt(*stored, site_) &&
        std::ranges::find(sites, site_) != sites.end() && !job.spec.checkpoint.path.empty() &&
        plane_.iteration_ns(name) < 10 * kSecondNs) {
      returns_[name] = job.runs;
    }
  }
}

void SiteRules::CheckReturned() const {
  for (const auto& [name, runs] : returns_) {
    const UserJob& job = user_.jobs().at(name);
    const StoredJob* stored = disk_.Find(name);
    if (job.runs == runs && stored != nullptr && Trains(job, *stored) && !IsAt(*stored, site_)) {
      world_.Break(fmt::format("job {} does not use {}, which is back: {}", name, site_, job.detail.summary().cause()));
    }
  }
}

}  // namespace geopipe::simulation
