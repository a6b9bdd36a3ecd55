// Jobs that leave devices and come back to them: nodes that are gone, sites that are drained, and both when they are
// back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/coordinator.h"
#include "optimizer/base/quantities.h"

namespace geopipe {
namespace {

std::set<NodeKey> NodesOf(const Allocation& allocation) {
  const std::vector<NodeKey> nodes = allocation.nodes();
  return {nodes.begin(), nodes.end()};
}

// Keeps those of the job's named sites that have offers; a job that leaves the choice open takes whatever is there.
JobSpec WithSitesOf(JobSpec job, std::span<const NodeOffer> offers) {
  std::vector<std::string> sites = job.placement.sites;
  std::erase_if(sites, [&](const std::string& site) {
    return std::ranges::none_of(offers, [&](const NodeOffer& offer) { return offer.key.site == site; });
  });
  if (!sites.empty()) {
    job.placement.sites = std::move(sites);
  }
  return job;
}

}  // namespace

void Coordinator::NoteUnheard(Now now) {
  constexpr int64_t kLongestStepNs = 1'000'000'000;  // beyond it this process did nothing, and nobody is to blame
  // If this process hears from nobody, it is itself cut off.
  const bool hears_any = std::ranges::any_of(membership_.nodes(), [](const auto& entry) {
    return entry.second.usable() && entry.second.health == NodeHealth::kAlive;
  });
  const int64_t since_ns = now.ns - std::exchange(last_look_ns_, now.ns);
  const int64_t passed_ns = hears_any ? std::min(since_ns, kLongestStepNs) : 0;
  for (Job* job : InOrder()) {
    if (IsFinal(job->state())) {
      continue;
    }
    std::set<NodeKey> nodes = job->home;
    if (job->run != nullptr) {
      nodes.insert(job->run->life().nodes.begin(), job->run->life().nodes.end());
    }
    for (const NodeKey& key : nodes) {
      const NodeRecord* node = membership_.Find(key);
      if (node != nullptr && node->usable() && node->health == NodeHealth::kAlive) {
        job->unheard_ns.erase(key);
      } else {
        job->unheard_ns[key] += passed_ns;
      }
    }
  }
}

bool Coordinator::IsGone(const Job& job, const NodeKey& node) const {
  const auto found = job.unheard_ns.find(node);
  return found != job.unheard_ns.end() && found->second >= job.spec.grace_ns;
}

std::set<std::string> Coordinator::DrainedOf(const JobRun& run) const {
  std::set<std::string> sites;
  for (const NodeKey& node : run.life().nodes) {
    if (drained_.contains(node.site)) {
      sites.insert(node.site);
    }
  }
  return sites;
}

// Returns why a run on these devices cannot take the job over.
std::optional<std::string> Coordinator::Misfit(const JobSpec& spec, const JobLife::Earlier& earlier,
                                               const Allocation& allocation) const {
  if (!earlier.CanGoOnAt(NodesOf(allocation)) && spec.checkpoint.path.empty()) {
    return "it has no checkpoint.path";
  }
  if (!earlier.CanGoOnAt(NodesOf(allocation))) {
    std::set<NodeKey> beyond;
    for (const ListedCheckpoint::Holders& holders : earlier.checkpoints.listed.empty()
                                                        ? std::vector<ListedCheckpoint::Holders>{}
                                                        : earlier.checkpoints.listed.back().parts) {
      beyond.insert(holders.begin(), holders.end());
    }
    std::erase_if(beyond, [&](const NodeKey& node) { return NodesOf(allocation).contains(node); });
    return fmt::format("no checkpoint is complete at {}{} (checkpoint.replicate: 1 keeps copies at other sites)",
                       fmt::join(allocation.site_names(), ", "),
                       beyond.empty() ? ""
                                      : fmt::format(", more of it is at {}",
                                                    DisplayNames(std::vector<NodeKey>(beyond.begin(), beyond.end()))));
  }
  if (!spec.placement.sites.empty()) {
    const absl::Status linked = LinkTable::Of(membership_.nodes()).CheckPipeline(spec, allocation.site_names());
    if (!linked.ok()) {
      return std::string(linked.message());
    }
  }
  return std::nullopt;
}

AllocationDecision Coordinator::WouldGet(const Job& job, const std::set<NodeKey>& without, bool needs_state) const {
  if (job.options.explicit_costs.has_value()) {
    return {.allocation = std::nullopt, .reason = "its stages were given with their costs"};
  }
  std::vector<NodeOffer> offers = Offers(&job);
  AddMeasuredNetworks(job, offers);
  std::erase_if(offers, [&](const NodeOffer& offer) {
    return without.contains(offer.key) || job.unfit.contains(offer.key) || offer.free.empty() ||
           !CanRun(offer, job.options.backend);
  });
  if (offers.empty()) {
    return {.allocation = std::nullopt, .reason = "no other node is there"};
  }
  const JobSpec spec = WithSitesOf(job.spec, offers);
  AllocationDecision decision = DecideAllocation(spec, job.options, offers);
  if (decision.allocation.has_value()) {
    JobLife::Earlier earlier;  // the state is written before the job leaves
    if (needs_state) {
      earlier = {.checkpoints = job.run->life().checkpoints, .told = job.iterations().next() > 0};
    }
    if (std::optional<std::string> misfit = Misfit(spec, earlier, *decision.allocation); misfit.has_value()) {
      return {.allocation = std::nullopt, .reason = *std::move(misfit)};
    }
  }
  return decision;
}

void Coordinator::LookAfter(Now now, Job& job) {
  job.stays.clear();
  if (job.run == nullptr || job.run->life().wants.pause || job.options.explicit_costs.has_value()) {
    return;
  }
  const std::set<std::string> drained = DrainedOf(*job.run);
  std::set<NodeKey> gone;
  std::set<NodeKey> without;
  for (const NodeKey& node : job.run->life().nodes) {
    if (drained.contains(node.site)) {
      without.insert(node);
    }
    if (job.spec.on_site_loss == OnSiteLoss::kReplan && IsGone(job, node)) {
      gone.insert(node);
      without.insert(node);
    }
  }
  const bool is_stuck = job.state() == v1::JOB_STATE_RECOVERING || job.state() == v1::JOB_STATE_PAUSED;
  const bool is_running = job.state() == v1::JOB_STATE_RUNNING;
  if (is_stuck && !gone.empty()) {
    job.exit = LeaveGone(job, gone, without);
  } else if (is_running && !drained.empty()) {
    job.exit = LeaveDrained(job, drained, without);
  } else if (is_running && job.return_due && job.run->At(now.ns).MayMove()) {
    job.exit = ComeBack(job);
  }
}

Exit Coordinator::LeaveGone(Job& job, const std::set<NodeKey>& gone, const std::set<NodeKey>& without) const {
  const bool more_may_be = std::ranges::any_of(job.run->life().nodes, [&](const NodeKey& node) {
    return job.unheard_ns.contains(node) && !without.contains(node);
  });
  if (more_may_be) {
    return {};  // soon it is known whether they are gone as well
  }
  const AllocationDecision target = WouldGet(job, without, true);
  if (!target.allocation.has_value()) {
    job.stays = fmt::format("it cannot go on at the others: {}", target.reason);
    return {};
  }
  return {.why = Exit::Why::kGone,
          .cause = fmt::format(
              "{} {} {} not been heard from for {}; the job goes on at {}", gone.size() == 1 ? "node" : "nodes",
              DisplayNames(std::vector<NodeKey>(gone.begin(), gone.end())), gone.size() == 1 ? "has" : "have",
              FormatSeconds(job.spec.grace_ns), fmt::join(target.allocation->site_names(), ", "))};
}

// Decides as WouldGet, for a job that takes its state along.
AllocationDecision Coordinator::WouldLeaveFor(const Job& job, const std::set<NodeKey>& without) const {
  const std::set<NodeKey>& nodes = job.run->life().nodes;
  if (job.spec.checkpoint.path.empty()) {
    return {.allocation = std::nullopt, .reason = "it has no checkpoint.path to take its state along"};
  }
  if (std::ranges::all_of(nodes, [&](const NodeKey& node) { return without.contains(node); })) {
    return {.allocation = std::nullopt, .reason = "none of the nodes that it keeps could take a copy of its state"};
  }
  return WouldGet(job, without, false);
}

Exit Coordinator::LeaveDrained(Job& job, const std::set<std::string>& drained, const std::set<NodeKey>& without) const {
  if (job.run->life().wants.move) {
    return {};
  }
  const std::string names = fmt::format("{} {}", drained.size() == 1 ? "site" : "sites", fmt::join(drained, ", "));
  const AllocationDecision target = WouldLeaveFor(job, without);
  if (!target.allocation.has_value()) {
    job.stays = fmt::format("it cannot leave {}, which is drained: {}", names, target.reason);
    return {};
  }
  return {.why = Exit::Why::kMove, .cause = fmt::format("{} {} drained", names, drained.size() == 1 ? "is" : "are")};
}

// Uses nodes again that the job had to do without.
Exit Coordinator::ComeBack(Job& job) const {
  const std::set<NodeKey>& present = job.run->life().nodes;
  std::set<NodeKey> missing = job.home;
  std::erase_if(missing, [&](const NodeKey& node) { return present.contains(node); });
  std::erase_if(missing, [&](const NodeKey& key) {
    const NodeRecord* node = membership_.Find(key);
    return node == nullptr || !node->usable() || drained_.contains(key.site) || job.unfit.contains(key);
  });
  if (missing.empty()) {
    job.return_due = false;
    return {};
  }
  const AllocationDecision target = WouldGet(job, {}, false);
  if (!target.allocation.has_value()) {
    return {};
  }
  const std::set<NodeKey> nodes = NodesOf(*target.allocation);
  std::erase_if(missing, [&](const NodeKey& node) { return !nodes.contains(node); });
  const bool keeps_all = std::ranges::all_of(present, [&](const NodeKey& node) { return nodes.contains(node); });
  if (missing.empty() || !keeps_all) {
    return {};
  }
  return {.why = Exit::Why::kMove,
          .cause = fmt::format("{} {} back", DisplayNames(std::vector<NodeKey>(missing.begin(), missing.end())),
                               missing.size() == 1 ? "is" : "are")};
}

JobSpec Coordinator::Pinned(const Job& job, const LinkTable& links) const {
  JobSpec spec = job.run->life().choices;
  const std::vector<std::string> sites = job.run->life().allocation.site_names();
  if (!spec.placement.sites.empty()) {
    spec.placement.sites = sites;  // in its order
    return spec;
  }
  std::vector<std::string> order;
  const auto add = [&](const std::string& site) {
    if (std::ranges::find(sites, site) != sites.end() && std::ranges::find(order, site) == order.end()) {
      order.push_back(site);
    }
  };
  for (int i = job.detail.epochs_size() - 1; job.run->life().epochs_before > 0 && i >= 0; --i) {
    std::ranges::for_each(job.detail.epochs(i).sites(), add);
  }
  if (!order.empty()) {
    std::ranges::for_each(sites, add);
    JobSpec pinned = spec;
    pinned.placement.sites = order;
    return links.CheckPipeline(pinned, order).ok() ? pinned : spec;
  }
  return spec;
}

bool Coordinator::DoWithoutNewNodes(Job& job) const {
  if (job.run == nullptr || job.state() == v1::JOB_STATE_RUNNING || job.run->life().progressed || job.before.empty()) {
    return false;
  }
  std::set<NodeKey> added = NodesOf(job.run->life().allocation);
  std::erase_if(added, [&](const NodeKey& node) { return job.before.contains(node); });
  job.unfit.insert(added.begin(), added.end());
  return !added.empty();
}

// --- A job that has left its devices ------------------------------------------------------------------------------

bool Coordinator::HasStray(const Job& job, const NodeKey& key) const {
  const NodeRecord* node = membership_.Find(key);
  for (int32_t device = 0; node != nullptr && device < node->spec.devices(); ++device) {
    const Stray* stray = strays_.Find({key.site, key.node, device});
    if (stray != nullptr && stray->job == job.name()) {
      return true;
    }
  }
  return false;
}

// Names what the job does not begin without, although there may already be enough devices.
std::optional<std::string> Coordinator::AwaitedBy(const Job& job) const {
  if (!job.has_trained()) {
    return std::nullopt;
  }
  for (const NodeKey& key : job.home) {
    const NodeRecord* node = membership_.Find(key);
    if (job.unfit.contains(key)) {
      continue;
    }
    if (drained_.contains(key.site)) {
      if (job.needs_home) {
        return fmt::format("waiting for site {}, which is drained; `geopipectl uncordon site {}` gives it back",
                           key.site, key.site);
      }
      continue;
    }
    if (node == nullptr || !node->usable()) {
      if (job.needs_home || job.spec.on_site_loss == OnSiteLoss::kWait || !IsGone(job, key)) {
        return fmt::format("waiting for agent {}, which is silent", DisplayName(key));
      }
      continue;
    }
    if (HasStray(job, key)) {
      return fmt::format("waiting for its workers on {} to end", DisplayName(key));
    }
  }
  return std::nullopt;
}

AllocationDecision Coordinator::Decide(const Job& job, const std::set<NodeKey>& promised) const {
  std::vector<NodeOffer> offers = Offers();
  AddMeasuredNetworks(job, offers);
  std::erase_if(offers,
                [&](const NodeOffer& offer) { return job.unfit.contains(offer.key) || promised.contains(offer.key); });
  if (!job.has_trained()) {
    AllocationDecision decision = DecideAllocation(job.spec, job.options, offers);
    const auto drained = std::ranges::find_if(job.spec.placement.sites,
                                              [&](const std::string& site) { return drained_.contains(site); });
    if (!decision.allocation.has_value() && drained != job.spec.placement.sites.end()) {
      decision.reason = fmt::format(
          "waiting for site {}, which is drained; `geopipectl uncordon site {}` gives it back", *drained, *drained);
    }
    return decision;
  }
  if (std::optional<std::string> awaited = AwaitedBy(job); awaited.has_value()) {
    return {.allocation = std::nullopt, .reason = *std::move(awaited)};
  }
  std::erase_if(offers,
                [&](const NodeOffer& offer) { return offer.free.empty() || !CanRun(offer, job.options.backend); });
  const JobSpec spec = WithSitesOf(job.spec, offers);
  AllocationDecision decision = DecideAllocation(spec, job.options, offers);
  if (decision.allocation.has_value() && job.needs_home) {
    const std::set<NodeKey> nodes = NodesOf(*decision.allocation);
    if (!std::ranges::all_of(job.home, [&](const NodeKey& node) { return nodes.contains(node); })) {
      return {.allocation = std::nullopt, .reason = "waiting for all nodes that it had: it does not fit on fewer"};
    }
  }
  if (decision.allocation.has_value()) {
    if (std::optional<std::string> misfit = Misfit(spec, EarlierOf(job), *decision.allocation); misfit.has_value()) {
      return {.allocation = std::nullopt, .reason = fmt::format("waiting for more of its sites: {}", *misfit)};
    }
  }
  return decision;
}

// --- Drained sites ------------------------------------------------------------------------------------------------

bool Coordinator::IsKnown(const std::string& site) const {
  return std::ranges::any_of(membership_.nodes(), [&](const auto& entry) { return entry.first.site == site; });
}

void Coordinator::On(Now /*now*/, DrainSite& event) {
  if (!IsKnown(event.site)) {
    ReplyError(event.call, absl::NotFoundError(fmt::format("no agent of site \"{}\" is known; `geopipectl get sites` "
                                                           "lists them",
                                                           event.site)));
    return;
  }
  const bool already = !drained_.insert(event.site).second;
  if (!already) {
    Emit(PersistDrained{event.site, true, event.call});
    Log(LogLevel::kInfo, "", fmt::format("site {} is drained", event.site));
  }
  v1::DrainSiteResponse response;
  response.set_already(already);
  for (Job* job : InOrder()) {
    if (job->run == nullptr ||
        std::ranges::none_of(job->run->life().nodes, [&](const NodeKey& node) { return node.site == event.site; })) {
      continue;
    }
    v1::JobAtSite& at = *response.add_jobs();
    at.set_name(job->name());
    at.set_state(job->state());
    std::set<NodeKey> without;
    for (const NodeKey& node : job->run->life().nodes) {
      if (drained_.contains(node.site)) {
        without.insert(node);
      }
    }
    const AllocationDecision target = WouldLeaveFor(*job, without);
    if (!target.allocation.has_value()) {
      at.set_stays(true);
      at.set_words(target.reason);
    } else if (job->run->life().wants.pause) {
      at.set_words("it is paused; it leaves when it is resumed");
    } else {
      at.set_words(fmt::format("it goes on at {} when its state is safe there",
                               fmt::join(target.allocation->site_names(), ", ")));
    }
  }
  ReplyTo(event.call, std::move(response));
  schedule_ = true;
}

void Coordinator::On(Now /*now*/, UncordonSite& event) {
  if (drained_.erase(event.site) == 0) {
    if (!IsKnown(event.site)) {
      ReplyError(event.call, absl::NotFoundError(fmt::format(
                                 "no agent of site \"{}\" is known; `geopipectl get sites` lists them", event.site)));
      return;
    }
    v1::UncordonSiteResponse response;
    response.set_already(true);
    ReplyTo(event.call, std::move(response));
    return;
  }
  Emit(PersistDrained{event.site, false, event.call});
  Log(LogLevel::kInfo, "", fmt::format("site {} is in use again", event.site));
  ReplyTo(event.call, v1::UncordonSiteResponse());
  schedule_ = true;
}

void Coordinator::On(Now /*now*/, DrainNotStored& event) {
  if (event.drained) {
    drained_.erase(event.site);
  } else {
    drained_.insert(event.site);
  }
  Log(LogLevel::kError, "", std::string(event.status.message()));
  ReplyError(event.call, absl::InternalError(event.status.message()));
  schedule_ = true;
}

}  // namespace geopipe
