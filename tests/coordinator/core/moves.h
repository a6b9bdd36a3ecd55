// Shared by tests of lost, returning and drained sites: a job with checkpoints, and the runs that follow its first one.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/core/federation.h"
#include "tests/coordinator/core/restarts.h"
#include "tests/support/durations.h"

namespace geopipe {

// A checkpoint after every iteration, copies at other sites.
inline Federation Made(int32_t replicate = 1) {
  Federation f(Federation::RecoveringOptions());
  f.job.checkpoint = {.path = "/ckpt", .every = 1, .keep = 5, .replicate = replicate};
  f.job.training.iterations = 9;
  f.job.grace_ns = 10 * kSecond;
  return f;
}

inline v1::WorkerReport OfEpoch(uint64_t epoch) {
  v1::WorkerReport report;
  report.set_epoch(epoch);
  return report;
}

// Complete on all nodes.
inline void Save(Federation& f, uint64_t epoch, int64_t iteration) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report = OfEpoch(epoch);
    report.mutable_checkpoint()->set_rank(static_cast<int32_t>(rank));
    report.mutable_checkpoint()->set_iteration(iteration);
    v1::CheckpointFile& file = *report.mutable_checkpoint()->add_files();
    file.set_name("of-" + f.sites[rank]);
    file.set_bytes(100);
    f.Answer(f.sites[rank], report);
  }
  for (const std::string& site : f.sites) {
    v1::WorkerReport report = OfEpoch(epoch);
    report.mutable_manifest()->set_iteration(iteration);
    f.Answer(site, report);
  }
}

inline void FailToSave(Federation& f, uint64_t epoch, int64_t iteration) {
  v1::WorkerReport report = OfEpoch(epoch);
  report.mutable_checkpoint()->set_rank(1);
  report.mutable_checkpoint()->set_iteration(iteration);
  report.mutable_checkpoint()->set_error("/ckpt: No space left on device");
  f.Answer("east", report);
}

inline void Copy(Federation& f, const std::string& site, uint64_t epoch, int64_t iteration,
                 const std::string& error = "") {
  v1::WorkerReport report = OfEpoch(epoch);
  report.mutable_replica()->set_iteration(iteration);
  report.mutable_replica()->set_error(error);
  f.Answer(site, report);
}

inline void CopyAll(Federation& f, uint64_t epoch, int64_t iteration) {
  for (const std::string& site : f.sites) {
    Copy(f, site, epoch, iteration);
  }
}

// Two iterations are told, the checkpoint before the second is complete and copied.
inline void RunSaved(Federation& f, bool copies = true) {
  f.DriveTo(v1::JOB_STATE_RUNNING);
  f.IterateAll(0);
  Save(f, 1, 1);
  if (copies) {
    CopyAll(f, 1, 1);
  }
  f.IterateAll(1);
}

// The site is not heard any more; the others' connections broke.
inline void Lose(Federation& f, const std::string& site, uint64_t epoch = 1, int64_t next = 2) {
  f.Close(f.sessions[site]);
  std::erase(f.sites, site);
  for (const std::string& left : f.sites) {
    v1::WorkerReport report = FailureReportOf(absl::StatusCode::kUnavailable, "a peer is gone");
    report.set_epoch(epoch);
    report.mutable_failure()->set_parked(true);
    report.mutable_failure()->set_next_iteration(next);
    AddState(report.mutable_failure()->mutable_states(), next, epoch);
    f.Answer(left, report);
  }
}

// Makes each node find the listed checkpoints when it profiles.
inline void FindListed(Federation& f) {
  f.found.clear();
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
    f.found.push_back(checkpoint.identity());
  }
}

// The run that follows, measured.
inline void ProfileAgain(Federation& f) {
  FindListed(f);
  f.job.search.micro_batch_size = {1};  // that it had
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PROFILING);
  f.HelloAll();
  f.ProfileAll();
}

// Drives the job until its plan is being deployed.
inline void PlanAgain(Federation& f) {
  ProfileAgain(f);
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_PLANNING);
  f.PlanNow();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_DEPLOYING);
}

// Drives the job to RUNNING.
inline void Begin(Federation& f) {
  PlanAgain(f);
  f.PrepareAll();
  f.CommitAll();
  REQUIRE(f.StateOf("tiny") == v1::JOB_STATE_RUNNING);
}

inline void EndAt(Federation& f, uint64_t epoch, int64_t next) {
  for (size_t rank = 0; rank < f.sites.size(); ++rank) {
    v1::WorkerReport report = EndedReportOf(static_cast<int32_t>(rank), epoch, next);
    report.mutable_ended()->mutable_states(0)->set_run_incarnation(f.Stored().jobs[0].record.run_incarnation());
    f.Answer(f.sites[rank], report);
  }
}

inline std::vector<v1::PrepareCommand> Prepares(const Federation& f) {
  std::vector<v1::PrepareCommand> prepares;
  for (const SendToAgent& send : f.Last<SendToAgent>()) {
    if (send.message.command().command().has_prepare()) {
      prepares.push_back(send.message.command().command().prepare());
    }
  }
  return prepares;
}

inline std::vector<int64_t> ListedIn(Federation& f) {
  std::vector<int64_t> listed;
  const v1::JobDetail detail = f.DetailOf("tiny");
  for (const v1::CheckpointSummary& checkpoint : detail.checkpoints()) {
    listed.push_back(checkpoint.identity().iteration());
  }
  return listed;
}

}  // namespace geopipe
