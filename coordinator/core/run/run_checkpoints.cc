#include "coordinator/core/run/run_checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "proto/wire/checkpoint_wire.h"

namespace geopipe {

bool ListedCheckpoint::IsAt(const std::set<NodeKey>& nodes) const {
  const bool told = !parts.empty() && std::ranges::all_of(parts, [&](const Holders& holders) {
    return std::ranges::any_of(holders, [&](const NodeKey& node) { return nodes.contains(node); });
  });
  return told && !IsUnreadableAt(nodes);
}

bool ListedCheckpoint::IsUnreadableAt(const std::set<NodeKey>& nodes) const {
  return std::ranges::any_of(unreadable_at,
                             [&](const std::set<NodeKey>& lacking) { return std::ranges::includes(lacking, nodes); });
}

bool ListedCheckpoint::IsBeyond(const std::set<NodeKey>& nodes) const {
  return std::ranges::any_of(parts, [&](const Holders& holders) {
    return std::ranges::any_of(holders, [&](const NodeKey& node) { return !nodes.contains(node); });
  });
}

absl::StatusOr<std::vector<ListedCheckpoint>> ListedOf(const v1::JobDetail& detail) {
  std::vector<ListedCheckpoint> listed;
  for (const v1::CheckpointSummary& summary : detail.checkpoints()) {
    GP_ASSIGN_OR_RETURN(const CheckpointIdentity identity, FromProto(summary.identity()));
    ListedCheckpoint& each = listed.emplace_back(
        ListedCheckpoint{.identity = identity, .bytes = summary.bytes(), .duration_ns = summary.duration_ns()});
    for (const v1::CheckpointPart& part : summary.parts()) {
      ListedCheckpoint::Holders& holders = each.parts.emplace_back();
      for (const v1::NodeName& node : part.holders()) {
        holders.push_back(KeyOf(node));
      }
    }
    for (const v1::NodeNames& names : summary.unreadable_at()) {
      std::set<NodeKey>& nodes = each.unreadable_at.emplace_back();
      for (const v1::NodeName& node : names.nodes()) {
        nodes.insert(KeyOf(node));
      }
    }
  }
  return listed;
}

void RunCheckpoints::BeginEpoch(const Epoch& epoch, uint64_t incarnation, int64_t sequence_length, bool copies) {
  members_.clear();
  for (const EpochMember& member : epoch.members) {
    members_.push_back(member.worker);
  }
  copies_ = copies;
  epoch_ = epoch.number;
  incarnation_ = incarnation;
  sequence_length_ = sequence_length;
  attempts_.clear();
}

void RunCheckpoints::Ask(int64_t iteration, CopyRule rule) {
  attempts_.erase(iteration);
  Outcome none;
  AttemptOf(iteration, none).rule = std::move(rule);
}

bool RunCheckpoints::Pending(int64_t iteration) const {
  const auto found = attempts_.find(iteration);
  return found != attempts_.end() && found->second.phase != Phase::kOver;
}

void RunCheckpoints::End(Attempt& attempt) {
  attempt.phase = Phase::kOver;
  attempt.reports.clear();
  attempt.parts.clear();
}

RunCheckpoints::Attempt& RunCheckpoints::AttemptOf(int64_t iteration, Outcome& outcome) {
  const auto [found, is_new] = attempts_.try_emplace(iteration);
  if (!is_new) {
    return found->second;
  }
  found->second.reports.resize(members_.size());
  found->second.rule.wanted = copies_;
  if (attempts_.size() > kMaxAttempts) {
    // The attempt that has just begun stays; it may be older than the others when a checkpoint is asked for again.
    const auto oldest = attempts_.begin() == found ? std::next(found) : attempts_.begin();
    if (oldest->second.phase != Phase::kOver) {
      outcome.trouble =
          fmt::format("{} of iteration {}: {} not complete when that of iteration {} began",
                      oldest->second.phase == Phase::kCopies ? "no copies of the checkpoint" : "no checkpoint",
                      oldest->first, oldest->second.phase == Phase::kCopies ? "they were" : "it was", iteration);
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
  attempt.reports[report.rank()] = report;
  if (std::ranges::all_of(attempt.reports, [](const auto& each) { return each.has_value(); })) {
    outcome.orders = OrderManifests(report.iteration(), attempt);
  }
  return outcome;
}

std::vector<ListedCheckpoint::Holders> RunCheckpoints::HoldersOf(const Attempt& attempt) {
  std::vector<ListedCheckpoint::Holders> holders;
  for (const auto& [node, part] : attempt.parts) {
    if (!part.files.empty()) {
      holders.push_back(part.holders);
    }
  }
  return holders;
}

std::vector<RunCheckpoints::ManifestOrder> RunCheckpoints::OrderManifests(int64_t iteration, Attempt& attempt) const {
  v1::WriteManifestCommand command;
  command.set_iteration(iteration);
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    Part& part = attempt.parts.try_emplace(members_[rank].node_key(), Part{.worker = members_[rank]}).first->second;
    part.holders = {members_[rank].node_key()};
    for (const v1::CheckpointFile& file : attempt.reports[rank]->files()) {
      part.files.push_back(file.name());
      part.bytes += file.bytes();
      *command.add_files() = file;
    }
  }
  attempt.reports.clear();
  attempt.phase = Phase::kManifests;
  std::vector<ManifestOrder> orders;
  for (const auto& [node, part] : attempt.parts) {
    attempt.awaited.insert(part.worker);
    orders.push_back({part.worker, command});
  }
  return orders;
}

RunCheckpoints::Outcome RunCheckpoints::OnManifest(int64_t now_ns, const WorkerKey& worker, uint64_t epoch,
                                                   const v1::ManifestReport& report) {
  const auto found = attempts_.find(report.iteration());
  if (epoch != epoch_ || found == attempts_.end() || found->second.phase != Phase::kManifests ||
      !found->second.awaited.contains(worker)) {
    return {};
  }
  Attempt& attempt = found->second;
  if (!report.error().empty()) {
    End(attempt);
    return {.trouble = fmt::format("no checkpoint of iteration {}: node {}/{}: {}", report.iteration(), worker.site,
                                   worker.node, report.error())};
  }
  attempt.awaited.erase(worker);
  if (!attempt.awaited.empty()) {
    return {};
  }
  attempt.complete = {.identity = {.iteration = report.iteration(),
                                   .incarnation = incarnation_,
                                   .epoch = epoch_,
                                   .sequence_length = sequence_length_},
                      .duration_ns = now_ns - attempt.begun_ns};
  for (const auto& [node, part] : attempt.parts) {
    attempt.complete.bytes += part.bytes;
  }
  attempt.complete.parts = HoldersOf(attempt);
  Outcome outcome{.complete = attempt.complete};
  outcome.copies = OrderCopies(report.iteration(), attempt);
  if (outcome.copies.empty()) {
    if (attempt.rule.wanted) {
      outcome.trouble =
          fmt::format("no copies of the checkpoint of iteration {}: the run has one site, and copies lie at another",
                      report.iteration());
    }
    End(attempt);
  }
  return outcome;
}

std::vector<RunCheckpoints::CopyOrder> RunCheckpoints::OrderCopies(int64_t iteration, Attempt& attempt) const {
  std::vector<std::pair<std::string, std::vector<WorkerKey>>> sites;  // possible sites of copies, in the plan's order
  for (const WorkerKey& member : members_) {
    if (attempt.rule.avoid.contains(member.node_key())) {
      continue;
    }
    auto site = std::ranges::find(sites, member.site, [](const auto& each) { return each.first; });
    if (site == sites.end()) {
      site = sites.insert(sites.end(), {member.site, {}});
    }
    if (std::ranges::find(site->second, member.node_key(), &WorkerKey::node_key) == site->second.end()) {
      site->second.push_back(attempt.parts.at(member.node_key()).worker);
    }
  }
  std::map<WorkerKey, CopyOrder> orders;
  size_t number = 0;  // spreads the parts of a site over the nodes of the next
  for (auto& [node, part] : attempt.parts) {
    if (part.files.empty() || !attempt.rule.wanted ||
        (!attempt.rule.avoid.empty() && !attempt.rule.avoid.contains(node))) {
      continue;
    }
    const auto own = std::ranges::find(sites, node.site, [](const auto& each) { return each.first; });
    // Parts of nodes that are left go to others of their site, where some stay: nothing crosses a link for that.
    const size_t step = attempt.rule.avoid.empty() ? 1 : 0;
    const size_t next = own == sites.end() ? 0 : static_cast<size_t>(own - sites.begin()) + step;
    if (sites.empty() || (step == 1 && sites[next % sites.size()].first == node.site)) {
      return {};
    }
    const std::vector<WorkerKey>& nodes = sites[next % sites.size()].second;
    const WorkerKey& holder = nodes[number++ % nodes.size()];
    CopyOrder& order =
        orders.try_emplace(holder, CopyOrder{.worker = holder, .iteration = iteration, .sources = {}}).first->second;
    order.sources.push_back({.worker = part.worker, .files = part.files});
    order.bytes += part.bytes;
    part.holders.push_back(holder.node_key());
  }
  std::vector<CopyOrder> all;
  for (auto& [worker, order] : orders) {
    attempt.awaited.insert(worker);
    all.push_back(std::move(order));
  }
  attempt.phase = Phase::kCopies;
  return all;
}

RunCheckpoints::Outcome RunCheckpoints::OnCopied(const WorkerKey& worker, uint64_t epoch,
                                                 const v1::ReplicaReport& report) {
  const auto found = attempts_.find(report.iteration());
  if (epoch != epoch_ || found == attempts_.end() || found->second.phase != Phase::kCopies ||
      !found->second.awaited.contains(worker)) {
    return {};
  }
  Attempt& attempt = found->second;
  if (!report.error().empty()) {
    End(attempt);
    return {.trouble = fmt::format("no copies of the checkpoint of iteration {}: node {}/{}: {}", report.iteration(),
                                   worker.site, worker.node, report.error())};
  }
  attempt.awaited.erase(worker);
  if (!attempt.awaited.empty()) {
    return {};
  }
  Outcome outcome{.copied = attempt.complete};
  outcome.copied->parts = HoldersOf(attempt);
  End(attempt);
  return outcome;
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

bool Contains(const std::vector<CheckpointIdentity>& found, const CheckpointIdentity& identity) {
  return std::ranges::find(found, identity) != found.end();
}

// True when both nodes have some checkpoint in common, and therefore hold those of one job: a node that was lost for a
// while has its old ones.
bool SomeInBoth(const std::vector<CheckpointIdentity>& a, const std::vector<CheckpointIdentity>& b) {
  return std::ranges::any_of(a, [&](const CheckpointIdentity& each) { return Contains(b, each); });
}

// True when `a` is the older of two of one job, whose numbers of runs and epochs ascend.
bool IsOlder(const CheckpointIdentity& a, const CheckpointIdentity& b) {
  return std::pair(a.incarnation, a.epoch) < std::pair(b.incarnation, b.epoch);
}

}  // namespace

absl::StatusOr<std::vector<CheckpointIdentity>> ResumableCheckpoints(
    const std::string& path, bool resume, const std::map<NodeKey, std::vector<CheckpointIdentity>>& found,
    int64_t end_iteration, const std::vector<int64_t>& sequence_lengths) {
  const auto refuse = [&](const std::string& why) {
    return absl::FailedPreconditionError(fmt::format("checkpoint.path {}: {}", path, why));
  };
  std::map<int64_t, CheckpointIdentity> resumable;  // by iteration
  std::string has;
  for (const auto& [node, all] : found) {
    has += fmt::format("{}{}/{} has {}", has.empty() ? "" : ", ", node.site, node.node, Iterations(all));
    for (const CheckpointIdentity& candidate : all) {
      if (!resume) {
        return refuse(
            fmt::format("node {}/{} has checkpoints of another run there, iterations {}; apply the job with "
                        "--resume, or choose another folder",
                        node.site, node.node, Iterations(all)));
      }
      CheckpointIdentity& known = resumable.try_emplace(candidate.iteration, candidate).first->second;
      if (known == candidate) {
        continue;
      }
      const auto& [other, others] =
          *std::ranges::find_if(found, [&](const auto& entry) { return Contains(entry.second, known); });
      if (!SomeInBoth(all, others)) {
        return refuse(
            fmt::format("iteration {} is of another run on node {}/{} than on node {}/{}; give the job a folder "
                        "that is the same on all nodes, or remove there what is not this job's",
                        candidate.iteration, node.site, node.node, other.site, other.node));
      }
      known = std::max(known, candidate, IsOlder);
    }
  }
  if (!resume) {
    return std::vector<CheckpointIdentity>{};
  }
  if (resumable.empty()) {
    return refuse(fmt::format("no node has a checkpoint ({}); copy one there, or apply the job without --resume", has));
  }
  const CheckpointIdentity newest = resumable.rbegin()->second;
  if (newest.iteration >= end_iteration) {
    return refuse(
        fmt::format("the newest checkpoint is the state before iteration {}, and the job has {}; give it more "
                    "training.iterations",
                    newest.iteration, end_iteration));
  }
  const auto fits = [&](const CheckpointIdentity& each) {
    return std::ranges::find(sequence_lengths, each.sequence_length) != sequence_lengths.end();
  };
  if (!fits(newest)) {
    return refuse(
        fmt::format("the newest checkpoint was trained with sequence length {}, and another would skip or repeat "
                    "samples; add it to search.sequence_length [{}]",
                    newest.sequence_length, fmt::join(sequence_lengths, ", ")));
  }
  std::vector<CheckpointIdentity> chosen;
  for (const auto& [iteration, each] : resumable) {
    if (each.sequence_length == newest.sequence_length) {
      chosen.push_back(each);
    }
  }
  if (chosen.size() > kMaxResumable) {
    chosen.erase(chosen.begin(), chosen.end() - kMaxResumable);
  }
  return chosen;
}

}  // namespace geopipe
