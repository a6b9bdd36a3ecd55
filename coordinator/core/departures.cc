#include "coordinator/core/departures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

bool LacksWorker(const JobRun& run, const NodeKey& node) {
  return std::ranges::any_of(run.crew().workers, [&](const auto& entry) {
    return entry.first.node_key() == node && !entry.second.attached();
  });
}

}  // namespace

void Departures::NoteUnheard(Now now) {
  constexpr int64_t kLongestStepNs = 1'000'000'000;  // beyond it this process did nothing, and nobody is to blame
  // If this process hears from nobody, it is itself cut off.
  const bool hears_any =
      std::ranges::any_of(membership_.nodes(), [](const auto& entry) { return entry.second.well(); });
  const int64_t since_ns = now.ns - std::exchange(last_look_ns_, now.ns);
  const int64_t passed_ns = hears_any ? std::min(since_ns, kLongestStepNs) : 0;
  for (Job* job : jobs_.InOrder()) {
    if (IsFinal(job->state()) || (job->run == nullptr && job->home.empty())) {
      continue;
    }
    std::set<NodeKey> nodes = job->home;
    if (job->run != nullptr) {
      nodes.insert(job->run->life().nodes.begin(), job->run->life().nodes.end());
    }
    for (const NodeKey& key : nodes) {
      const NodeRecord* node = membership_.Find(key);
      const bool is_unfit = job->unfit_since_ns.has_value() && node != nullptr && node->trouble.has_value();
      if (node != nullptr && node->well() && !is_unfit) {
        job->unheard_ns.erase(key);
      } else {
        job->unheard_ns[key] += passed_ns;
      }
    }
  }
}

std::set<NodeKey> Departures::LookAfter(Now now, Job& job) const {
  job.stays.clear();
  if (job.run == nullptr) {
    return {};
  }
  const std::set<NodeKey> left = placement_.LeftBy(*job.run);
  std::set<NodeKey> gone;
  std::set<NodeKey> going;
  std::set<NodeKey> without = left;
  for (const NodeKey& node : job.run->life().nodes) {
    // A worker that was lost on a node that goes down is not started again there.
    const bool is_gone = job.IsGone(node) || (membership_.IsLeaving(node) && LacksWorker(*job.run, node));
    if (job.spec.on_site_loss == OnSiteLoss::kReplan && is_gone) {
      gone.insert(node);
      without.insert(node);
    }
    if (membership_.IsLeaving(node)) {
      going.insert(node);
    }
  }
  const bool may_leave = !job.run->life().wants.pause && !job.options.explicit_costs.has_value();
  const bool is_stuck = job.state() == v1::JOB_STATE_RECOVERING || job.state() == v1::JOB_STATE_PAUSED;
  const bool is_running = job.state() == v1::JOB_STATE_RUNNING;
  if (may_leave && is_stuck && !gone.empty()) {
    job.exit = LeaveGone(job, gone, without);
  } else if (may_leave && is_running && !left.empty()) {
    job.exit = LeaveFor(job, left, without);
  } else if (may_leave && is_running && job.return_due && job.run->At(now.ns).MayMove()) {
    job.exit = ComeBack(job);
  }
  const bool leaves = job.exit.why != Exit::Why::kNone || job.run->life().wants.move;
  return leaves ? std::set<NodeKey>() : going;
}

Exit Departures::LeaveGone(Job& job, const std::set<NodeKey>& gone, const std::set<NodeKey>& without) const {
  const bool more_may_be = std::ranges::any_of(job.run->life().nodes, [&](const NodeKey& node) {
    return job.unheard_ns.contains(node) && !without.contains(node);
  });
  if (more_may_be) {
    return {};  // soon it is known whether they are gone as well
  }
  const AllocationDecision target = placement_.WouldGet(job, without, true);
  if (!target.allocation.has_value()) {
    job.stays = fmt::format("it cannot go on at the others: {}", target.reason);
    return {};
  }
  std::vector<NodeKey> silent;
  std::string why;
  for (const NodeKey& key : gone) {
    const NodeRecord* node = membership_.Find(key);
    if (membership_.IsLeaving(key)) {
      why += fmt::format("node {} goes down; ", DisplayName(key));
    } else if (node != nullptr && node->well() && node->trouble.has_value()) {
      why += fmt::format("node {} has been unfit for {}: {}; ", DisplayName(key), FormatSeconds(job.spec.grace_ns),
                         node->trouble->why);
    } else {
      silent.push_back(key);
    }
  }
  if (!silent.empty()) {
    why += fmt::format("{} {} {} not been heard from for {}; ", silent.size() == 1 ? "node" : "nodes",
                       DisplayNames(silent), silent.size() == 1 ? "has" : "have", FormatSeconds(job.spec.grace_ns));
  }
  return {.why = Exit::Why::kGone,
          .cause = fmt::format("{}the job goes on at {}", why, fmt::join(target.allocation->site_names(), ", "))};
}

Exit Departures::LeaveFor(Job& job, const std::set<NodeKey>& left, const std::set<NodeKey>& without) const {
  if (job.run->life().wants.move) {
    return {};
  }
  std::set<std::string> sites;
  std::vector<NodeKey> nodes;
  for (const NodeKey& node : left) {
    if (placement_.IsDrained(node.site)) {
      sites.insert(node.site);
    } else if (job.spec.on_site_loss == OnSiteLoss::kReplan) {
      nodes.push_back(node);
    }
  }
  const std::string site_names = fmt::format("{} {}", sites.size() == 1 ? "site" : "sites", fmt::join(sites, ", "));
  const std::string node_names = fmt::format("{} {}", nodes.size() == 1 ? "node" : "nodes", DisplayNames(nodes));
  std::vector<std::string> causes;
  std::vector<std::string> places;
  if (!sites.empty()) {
    causes.push_back(fmt::format("{} {} drained", site_names, sites.size() == 1 ? "is" : "are"));
    places.push_back(fmt::format("{}, which is drained", site_names));
  }
  if (!nodes.empty()) {
    causes.push_back(fmt::format("{} {} down", node_names, nodes.size() == 1 ? "goes" : "go"));
    places.push_back(fmt::format("{}, which {} down", node_names, nodes.size() == 1 ? "goes" : "go"));
  }
  if (causes.empty()) {
    return {};  // it waits for its nodes
  }
  const AllocationDecision target = placement_.WouldLeaveFor(job, without);
  if (!target.allocation.has_value()) {
    job.stays = fmt::format("it cannot leave {}: {}", fmt::join(places, ", and "), target.reason);
    return {};
  }
  return {.why = Exit::Why::kMove, .cause = fmt::format("{}", fmt::join(causes, ", "))};
}

// Uses nodes again that the job had to do without.
Exit Departures::ComeBack(Job& job) const {
  const std::set<NodeKey>& present = job.run->life().nodes;
  std::set<NodeKey> missing = job.home;
  std::erase_if(missing, [&](const NodeKey& key) {
    return present.contains(key) || !membership_.IsUsable(key) || membership_.Find(key)->trouble.has_value() ||
           placement_.IsLeft(key) || job.unfit.contains(key);
  });
  if (missing.empty()) {
    job.return_due = false;
    return {};
  }
  const AllocationDecision target = placement_.WouldGet(job, {}, false);
  if (!target.allocation.has_value()) {
    return {};
  }
  const std::set<NodeKey> nodes = target.allocation->nodes();
  std::erase_if(missing, [&](const NodeKey& node) { return !nodes.contains(node); });
  if (missing.empty() || !std::ranges::includes(nodes, present)) {
    return {};
  }
  return {.why = Exit::Why::kMove,
          .cause = fmt::format("{} {} back", DisplayNames(missing), missing.size() == 1 ? "is" : "are")};
}

bool Departures::DoWithoutNewNodes(Job& job) {
  if (job.run == nullptr || job.state() == v1::JOB_STATE_RUNNING || job.run->life().progressed || job.before.empty()) {
    return false;
  }
  std::set<NodeKey> added = job.run->life().allocation.nodes();
  std::erase_if(added, [&](const NodeKey& node) { return job.before.contains(node); });
  job.unfit.insert(added.begin(), added.end());
  return !added.empty();
}

}  // namespace geopipe
