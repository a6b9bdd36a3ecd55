#include "coordinator/core/run/run_checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace geopipe {

void RunCheckpoints::BeginEpoch(const Epoch& epoch, uint64_t incarnation, int64_t sequence_length) {
  members_.clear();
  for (const EpochMember& member : epoch.members) {
    members_.push_back(member.worker);
  }
  epoch_ = epoch.number;
  incarnation_ = incarnation;
  sequence_length_ = sequence_length;
  attempts_.clear();
}

void RunCheckpoints::Ask(int64_t iteration) {
  attempts_.erase(iteration);
  Outcome none;
  AttemptOf(iteration, none);
}

bool RunCheckpoints::Pending(int64_t iteration) const {
  const auto found = attempts_.find(iteration);
  return found != attempts_.end() && found->second.phase != Phase::kOver;
}

void RunCheckpoints::End(Attempt& attempt) {
  attempt.phase = Phase::kOver;
  attempt.reports.clear();
}

RunCheckpoints::Attempt& RunCheckpoints::AttemptOf(int64_t iteration, Outcome& outcome) {
  const auto [found, is_new] = attempts_.try_emplace(iteration);
  if (!is_new) {
    return found->second;
  }
  found->second.reports.resize(members_.size());
  if (attempts_.size() > kMaxAttempts) {
    // Not the one that has just begun, which may be older than the others: a checkpoint that was asked for again.
    const auto oldest = attempts_.begin() == found ? std::next(found) : attempts_.begin();
    if (oldest->second.phase != Phase::kOver) {
      outcome.trouble =
          fmt::format("no checkpoint of iteration {}: it was not complete when that of iteration {} began",
                      oldest->first, iteration);
    }
    attempts_.erase(oldest);
  }
  return found->second;
}

RunCheckpoints::Outcome RunCheckpoints::OnFiles(int64_t now_ns, const WorkerKey& worker, uint64_t epoch,
                                                const v1::CheckpointReport& report) {
  const auto member = std::ranges::find(members_, worker);
  if (epoch != epoch_ || member == members_.end() || member - members_.begin() != report.rank()) {
    return {};
  }
  Outcome outcome;
  Attempt& attempt = AttemptOf(report.iteration(), outcome);
  if (attempt.phase != Phase::kFiles || attempt.reports[report.rank()].has_value()) {
    return outcome;
  }
  if (!report.error().empty()) {
    End(attempt);
    outcome.trouble = fmt::format("no checkpoint of iteration {}: worker {} (site {}): {}", report.iteration(),
                                  DisplayName(worker), worker.site, report.error());
    return outcome;
  }
  const int64_t begun_ns = now_ns - report.duration_ns();
  attempt.begun_ns = attempt.begun_ns == 0 ? begun_ns : std::min(attempt.begun_ns, begun_ns);
  for (const v1::CheckpointFile& file : report.files()) {
    attempt.bytes += file.bytes();
  }
  attempt.reports[report.rank()] = report;
  if (std::ranges::all_of(attempt.reports, [](const auto& each) { return each.has_value(); })) {
    outcome.orders = OrderManifests(report.iteration(), attempt);
  }
  return outcome;
}

std::vector<RunCheckpoints::ManifestOrder> RunCheckpoints::OrderManifests(int64_t iteration, Attempt& attempt) const {
  v1::WriteManifestCommand command;
  command.set_iteration(iteration);
  for (const std::optional<v1::CheckpointReport>& report : attempt.reports) {
    command.mutable_files()->MergeFrom(report->files());
  }
  End(attempt);
  attempt.phase = Phase::kManifests;
  std::vector<ManifestOrder> orders;
  std::set<NodeKey> nodes;
  for (const WorkerKey& worker : members_) {
    if (nodes.insert(worker.node_key()).second) {
      attempt.writers.insert(worker);
      orders.push_back({worker, command});
    }
  }
  return orders;
}

RunCheckpoints::Outcome RunCheckpoints::OnManifest(int64_t now_ns, const WorkerKey& worker, uint64_t epoch,
                                                   const v1::ManifestReport& report) {
  const auto found = attempts_.find(report.iteration());
  if (epoch != epoch_ || found == attempts_.end() || found->second.phase != Phase::kManifests ||
      !found->second.writers.contains(worker)) {
    return {};
  }
  Attempt& attempt = found->second;
  if (!report.error().empty()) {
    End(attempt);
    return {.trouble = fmt::format("no checkpoint of iteration {}: node {}/{}: {}", report.iteration(), worker.site,
                                   worker.node, report.error())};
  }
  attempt.writers.erase(worker);
  if (!attempt.writers.empty()) {
    return {};
  }
  End(attempt);
  return {.complete = ListedCheckpoint{.identity = {.iteration = report.iteration(),
                                                    .incarnation = incarnation_,
                                                    .epoch = epoch_,
                                                    .sequence_length = sequence_length_},
                                       .bytes = attempt.bytes,
                                       .duration_ns = now_ns - attempt.begun_ns}};
}

namespace {

std::string Iterations(const std::vector<CheckpointIdentity>& found) {
  constexpr size_t kMaxNamed = 5;
  std::vector<int64_t> newest;
  for (const CheckpointIdentity& each : found) {
    newest.push_back(each.iteration);
  }
  std::ranges::sort(newest, std::greater());
  newest.resize(std::min(newest.size(), kMaxNamed));
  return newest.empty() ? "none" : fmt::format("{}", fmt::join(newest, ", "));
}

const CheckpointIdentity* At(const std::vector<CheckpointIdentity>& found, int64_t iteration) {
  const auto at = std::ranges::find(found, iteration, &CheckpointIdentity::iteration);
  return at == found.end() ? nullptr : &*at;
}

}  // namespace

absl::StatusOr<std::optional<CheckpointIdentity>> ChooseCheckpoint(
    const std::string& path, bool resume, const std::map<NodeKey, std::vector<CheckpointIdentity>>& found,
    int64_t end_iteration, const std::vector<int64_t>& sequence_lengths) {
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(fmt::format("checkpoint.path {}: {}", path, why));
  };
  if (!resume) {
    for (const auto& [node, all] : found) {
      if (!all.empty()) {
        return refuse(
            fmt::format("node {}/{} has checkpoints of another run there, iterations {}; apply the job with "
                        "--resume, or choose another folder",
                        node.site, node.node, Iterations(all)));
      }
    }
    return std::nullopt;
  }
  std::optional<CheckpointIdentity> newest;
  std::string differs;
  std::string has;
  for (const auto& [node, all] : found) {
    has += fmt::format("{}{}/{} has {}", has.empty() ? "" : ", ", node.site, node.node, Iterations(all));
  }
  for (const CheckpointIdentity& candidate :
       found.empty() ? std::vector<CheckpointIdentity>{} : found.begin()->second) {
    bool is_everywhere = true;
    for (const auto& [node, all] : found) {
      const CheckpointIdentity* same = At(all, candidate.iteration);
      if (same != nullptr && *same != candidate) {
        const NodeKey& first = found.begin()->first;
        differs = fmt::format(
            "iteration {} is of another run on node {}/{} than on node {}/{}; give the job a folder "
            "that is the same on all nodes",
            candidate.iteration, node.site, node.node, first.site, first.node);
      }
      is_everywhere = is_everywhere && same != nullptr && *same == candidate;
    }
    if (is_everywhere && (!newest.has_value() || newest->iteration < candidate.iteration)) {
      newest = candidate;
    }
  }
  if (!newest.has_value()) {
    return refuse(!differs.empty()
                      ? differs
                      : fmt::format("no checkpoint is complete on all nodes ({}); copy one to all of them, "
                                    "or apply the job without --resume",
                                    has));
  }
  if (newest->iteration >= end_iteration) {
    return refuse(
        fmt::format("the newest checkpoint is the state before iteration {}, and the job has {}; give it more "
                    "training.iterations",
                    newest->iteration, end_iteration));
  }
  if (std::ranges::find(sequence_lengths, newest->sequence_length) == sequence_lengths.end()) {
    return refuse(
        fmt::format("the newest checkpoint was trained with sequence length {}, and with another samples would "
                    "be skipped or repeated; have search.sequence_length [{}] contain it",
                    newest->sequence_length, fmt::join(sequence_lengths, ", ")));
  }
  return newest;
}

}  // namespace geopipe
