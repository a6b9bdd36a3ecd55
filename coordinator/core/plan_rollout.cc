#include "coordinator/core/plan_rollout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {

PlanRollout::PlanRollout(uint64_t epoch, std::vector<WorkerKey> stage_workers)
    : epoch_(epoch), stage_workers_(std::move(stage_workers)), answers_(stage_workers_.size()) {
  GP_CHECK(!stage_workers_.empty(), "a plan has at least one stage");
}

int32_t PlanRollout::StageOf(const WorkerKey& worker) const {
  const auto found = std::ranges::find(stage_workers_, worker);
  return found == stage_workers_.end() ? -1 : static_cast<int32_t>(found - stage_workers_.begin());
}

std::vector<WorkerKey> PlanRollout::Missing() const {
  std::vector<WorkerKey> missing;
  for (size_t stage = 0; stage < answers_.size(); ++stage) {
    if (phase_ != Phase::kCommitted && !answers_[stage].given) {
      missing.push_back(stage_workers_[stage]);
    }
  }
  return missing;
}

std::vector<v1::Peer> PlanRollout::Peers() const {
  GP_CHECK(phase_ != Phase::kPreparing, "addresses are known when all are prepared");
  std::vector<v1::Peer> peers(answers_.size());
  for (size_t stage = 0; stage < answers_.size(); ++stage) {
    peers[stage].set_stage(static_cast<int32_t>(stage));
    peers[stage].set_address(answers_[stage].address);
  }
  return peers;
}

// Finds the answer's place. False: it is none of this phase's.
absl::StatusOr<bool> PlanRollout::Mark(const WorkerKey& worker, uint64_t epoch, Phase phase, int32_t stage,
                                       Answer** answer) {
  const int32_t own = StageOf(worker);
  if (epoch != epoch_ || phase != phase_ || own < 0) {
    return false;
  }
  if (stage != own) {
    return absl::InvalidArgumentError(
        fmt::format("worker {} answered for stage {}; it was given stage {}", DisplayName(worker), stage, own));
  }
  *answer = &answers_[own];
  if ((*answer)->given) {
    return false;
  }
  (*answer)->given = true;
  return true;
}

absl::StatusOr<bool> PlanRollout::OnPrepared(const WorkerKey& worker, uint64_t epoch,
                                             const v1::PreparedReport& report) {
  Answer* answer = nullptr;
  GP_ASSIGN_OR_RETURN(const bool taken, Mark(worker, epoch, Phase::kPreparing, report.stage(), &answer));
  if (!taken) {
    return false;
  }
  answer->address = report.address();
  answer->data_bytes = report.data_bytes();
  answer->data_checksum = report.data_checksum();
  answer->threads = report.threads();
  if (!Missing().empty()) {
    return false;
  }
  GP_RETURN_IF_ERROR(CheckData());
  GP_RETURN_IF_ERROR(CheckThreads());
  phase_ = Phase::kCommitting;
  for (Answer& each : answers_) {
    each.given = false;
  }
  return true;
}

absl::StatusOr<bool> PlanRollout::OnCommitted(const WorkerKey& worker, uint64_t epoch,
                                              const v1::CommittedReport& report) {
  Answer* answer = nullptr;
  GP_ASSIGN_OR_RETURN(const bool taken, Mark(worker, epoch, Phase::kCommitting, report.stage(), &answer));
  if (!taken || !Missing().empty()) {
    return false;
  }
  phase_ = Phase::kCommitted;
  return true;
}

absl::Status PlanRollout::CheckData() const {
  const Answer& first = answers_.front();
  const Answer& last = answers_.back();
  if (first.data_bytes == last.data_bytes && first.data_checksum == last.data_checksum) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(fmt::format(
      "the first and the last stage read different training data: {} bytes with checksum {:016x} on {}, {} bytes with "
      "checksum {:016x} on {}; give both the same files",
      first.data_bytes, first.data_checksum, DisplayName(stage_workers_.front()), last.data_bytes, last.data_checksum,
      DisplayName(stage_workers_.back())));
}

absl::Status PlanRollout::CheckThreads() const {
  const auto other =
      std::ranges::find_if(answers_, [&](const Answer& answer) { return answer.threads != answers_.front().threads; });
  if (other == answers_.end()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      fmt::format("{} computes with {} threads and {} with {}, so that losses would depend on where a layer lies; give "
                  "devices.threads the same value in the configuration of all agents of the job",
                  DisplayName(stage_workers_.front()), answers_.front().threads,
                  DisplayName(stage_workers_[other - answers_.begin()]), other->threads));
}

}  // namespace geopipe
