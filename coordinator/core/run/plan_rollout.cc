#include "coordinator/core/run/plan_rollout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

// Something that the last bits of a rank's results depend on.
struct Trait {
  std::string (*value)(const v1::PreparedReport& report);
  std::string_view how;    // "computes on AMX", "computes with driver 580.65"
  std::string_view such;   // where a layer has to stay
  std::string_view alike;  // what nodes of one stage need
};

// The first that differs is told of.
constexpr std::array kTraits{
    Trait{[](const v1::PreparedReport& report) { return report.instructions(); }, "on", "on such processors",
          "the same kind of processor, or set ONEDNN_MAX_CPU_ISA to what all have in the environment of all agents"},
    Trait{[](const v1::PreparedReport& report) { return report.device().name(); }, "on", "on such devices",
          "devices of one kind"},
    Trait{[](const v1::PreparedReport& report) { return report.device().architecture(); }, "on", "on such devices",
          "devices of one kind"},
    Trait{[](const v1::PreparedReport& report) {
            return fmt::format("{} multiprocessors", report.device().multiprocessors());
          },
          "on", "on such devices", "devices of one kind"},
    Trait{[](const v1::PreparedReport& report) { return fmt::format("driver {}", report.device().driver()); }, "with",
          "with such drivers", "the same driver, or install it on all of them"},
    Trait{[](const v1::PreparedReport& report) { return fmt::format("CUDA runtime {}", report.device().runtime()); },
          "with", "with such libraries", "the same CUDA libraries, or install them on all of them"},
    Trait{[](const v1::PreparedReport& report) { return fmt::format("cuBLASLt {}", report.device().cublas_lt()); },
          "with", "with such libraries", "the same CUDA libraries, or install them on all of them"},
    Trait{[](const v1::PreparedReport& report) { return fmt::format("GPU kernels {}", report.device().kernels()); },
          "with", "with such kernels", "the same build of GeoPipe, or install it on all of them"},
};

}  // namespace

PlanRollout::PlanRollout(uint64_t epoch, const ProcessGrid& grid, std::vector<WorkerKey> workers, bool committed)
    : epoch_(epoch),
      grid_(grid),
      phase_(committed ? Phase::kCommitted : Phase::kPreparing),
      workers_(std::move(workers)),
      answers_(workers_.size()) {
  GP_CHECK(!workers_.empty() && std::ssize(workers_) == grid.size(), "{} workers for {} ranks", workers_.size(),
           grid.size());
}

int32_t PlanRollout::RankOf(const WorkerKey& worker) const {
  const auto found = std::ranges::find(workers_, worker);
  return found == workers_.end() ? -1 : static_cast<int32_t>(found - workers_.begin());
}

std::vector<WorkerKey> PlanRollout::Missing() const {
  std::vector<WorkerKey> missing;
  for (size_t rank = 0; rank < answers_.size(); ++rank) {
    if (phase_ != Phase::kCommitted && !answers_[rank].given) {
      missing.push_back(workers_[rank]);
    }
  }
  return missing;
}

std::vector<v1::Peer> PlanRollout::Peers() const {
  GP_CHECK(phase_ != Phase::kPreparing, "addresses are known when all are prepared");
  std::vector<v1::Peer> peers(answers_.size());
  for (size_t rank = 0; rank < answers_.size(); ++rank) {
    peers[rank].set_rank(static_cast<int32_t>(rank));
    peers[rank].set_address(answers_[rank].address);
  }
  return peers;
}

// Finds the answer's place. False: it does not belong to this phase.
absl::StatusOr<bool> PlanRollout::Mark(const WorkerKey& worker, uint64_t epoch, Phase phase, int32_t rank,
                                       Answer** answer) {
  const int32_t own = RankOf(worker);
  if (epoch != epoch_ || phase != phase_ || own < 0) {
    return false;
  }
  if (rank != own) {
    return absl::InvalidArgumentError(
        fmt::format("worker {} answered for rank {}; it was given rank {}", DisplayName(worker), rank, own));
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
  GP_ASSIGN_OR_RETURN(const bool taken, Mark(worker, epoch, Phase::kPreparing, report.rank(), &answer));
  if (!taken) {
    return false;
  }
  answer->address = report.address();
  answer->data_bytes = report.data_bytes();
  answer->data_checksum = report.data_checksum();
  answer->validation_bytes = report.validation_bytes();
  answer->validation_checksum = report.validation_checksum();
  answer->threads = report.threads();
  for (const Trait& trait : kTraits) {
    answer->traits.push_back(trait.value(report));
  }
  if (!Missing().empty()) {
    return false;
  }
  GP_RETURN_IF_ERROR(CheckData("training", &Answer::data_bytes, &Answer::data_checksum));
  GP_RETURN_IF_ERROR(CheckData("validation", &Answer::validation_bytes, &Answer::validation_checksum));
  GP_RETURN_IF_ERROR(CheckThreads());
  GP_RETURN_IF_ERROR(CheckReplicas());
  phase_ = Phase::kCommitting;
  for (Answer& each : answers_) {
    each.given = false;
  }
  return true;
}

absl::StatusOr<bool> PlanRollout::OnCommitted(const WorkerKey& worker, uint64_t epoch,
                                              const v1::CommittedReport& report) {
  Answer* answer = nullptr;
  GP_ASSIGN_OR_RETURN(const bool taken, Mark(worker, epoch, Phase::kCommitting, report.rank(), &answer));
  if (!taken || !Missing().empty()) {
    return false;
  }
  phase_ = Phase::kCommitted;
  return true;
}

absl::Status PlanRollout::CheckData(std::string_view which, int64_t Answer::*bytes, uint64_t Answer::*checksum) const {
  const auto reads = [&](const Answer& answer) { return answer.*bytes > 0; };
  const auto first = std::ranges::find_if(answers_, reads);
  const auto other = std::ranges::find_if(answers_, [&](const Answer& answer) {
    return reads(answer) && (answer.*bytes != (*first).*bytes || answer.*checksum != (*first).*checksum);
  });
  if (other == answers_.end()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(fmt::format(
      "{} and {} read different {} data: {} bytes with checksum {:016x} and {} bytes with checksum {:016x}; give "
      "both the same files",
      DisplayName(workers_[first - answers_.begin()]), DisplayName(workers_[other - answers_.begin()]), which,
      (*first).*bytes, (*first).*checksum, (*other).*bytes, (*other).*checksum));
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
                  DisplayName(workers_.front()), answers_.front().threads,
                  DisplayName(workers_[other - answers_.begin()]), other->threads));
}

std::optional<PlanRollout::Difference> PlanRollout::Compare(int32_t rank, int32_t other) const {
  const std::vector<std::string>& ours = answers_[rank].traits;
  const std::vector<std::string>& theirs = answers_[other].traits;
  const auto [here, there] = std::ranges::mismatch(ours, theirs);
  if (here == ours.end()) {
    return std::nullopt;
  }
  const auto trait = static_cast<size_t>(here - ours.begin());
  const std::string_view how = kTraits[trait].how;
  return Difference{trait, fmt::format("{} computes {} {} and {} {} {}", DisplayName(workers_[rank]), how, *here,
                                       DisplayName(workers_[other]), how, *there)};
}

absl::Status PlanRollout::CheckReplicas() const {
  for (int32_t rank = 0; rank < grid_.size(); ++rank) {
    const int32_t first = grid_.IndexOf({.pipeline = grid_.At(rank).pipeline});
    if (const std::optional<Difference> difference = Compare(first, rank); difference.has_value()) {
      return absl::FailedPreconditionError(fmt::format(
          "{}, so that replicas of a stage would round differently and drift apart; place the tensor and data ranks of "
          "a stage on nodes with {}",
          difference->text, kTraits[difference->trait].alike));
    }
  }
  return absl::OkStatus();
}

std::string PlanRollout::Mixture() const {
  for (int32_t pipeline = 1; pipeline < grid_.pipeline; ++pipeline) {
    const std::optional<Difference> difference = Compare(0, grid_.IndexOf({.pipeline = pipeline}));
    if (difference.has_value()) {
      return fmt::format("{}: losses repeat to the bit only while layers stay {}", difference->text,
                         kTraits[difference->trait].such);
    }
  }
  return "";
}

}  // namespace geopipe
