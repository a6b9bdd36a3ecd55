#include "coordinator/core/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

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

AllocationDecision None(std::string reason) { return {.allocation = std::nullopt, .reason = std::move(reason)}; }

std::string AwaitsDrained(const std::string& site) {
  return fmt::format("waiting for site {}, which is drained; `geopipectl uncordon site {}` gives it back", site, site);
}

}  // namespace

std::vector<NodeOffer> Placement::Offers(const Job* own) const {
  std::map<WorkerKey, const Job*> holders;
  for (const Job* job : jobs_.Running()) {
    for (const auto& [worker, post] : job->run->life().posts) {
      if (job != own && post.duty != Post::Duty::kStopped) {
        holders[worker] = job;
      }
    }
  }
  std::vector<NodeOffer> offers;
  for (const auto& [key, node] : membership_.nodes()) {
    if (!node.usable() || IsLeft(key)) {
      continue;
    }
    NodeOffer& offer = offers.emplace_back(
        NodeOffer{.key = key, .spec = node.spec, .free = {}, .holders = {}, .orphan_grace_ns = node.orphan_grace_ns});
    for (int32_t device = 0; device < node.spec.devices(); ++device) {
      const WorkerKey worker{key.site, key.node, device};
      if (const auto holder = holders.find(worker); holder != holders.end()) {
        offer.holders.insert(holder->second->name());
      } else if (const Stray* stray = strays_.Find(worker); stray != nullptr) {
        offer.holders.insert(
            stray->unknown
                ? fmt::format("{} (unknown here; its worker {} is left alone)", stray->job, DisplayName(worker))
                : fmt::format("{} (over; its worker {} is not known to have ended)", stray->job, DisplayName(worker)));
      } else {
        offer.free.push_back(device);
      }
    }
  }
  return offers;
}

std::vector<NodeOffer> Placement::Suiting(const Job& job, std::vector<NodeOffer> offers, bool goes_on,
                                          const std::set<NodeKey>& without) const {
  links_.AddMeasuredNetworks(job, offers);
  std::erase_if(offers, [&](const NodeOffer& offer) {
    return job.unfit.contains(offer.key) || without.contains(offer.key) || membership_.Rests(offer.key) ||
           (goes_on && (offer.free.empty() || !CanRun(offer, job.options.backend)));
  });
  return offers;
}

AllocationDecision Placement::DecideFirst(const Job& job, const std::set<NodeKey>& promised,
                                          const Market& market) const {
  AllocationDecision decision = DecideAllocation(job.spec, job.options, Suiting(job, market.offers, false, promised));
  const auto drained =
      std::ranges::find_if(job.spec.placement.sites, [&](const std::string& site) { return IsDrained(site); });
  if (!decision.allocation.has_value() && drained != job.spec.placement.sites.end()) {
    decision.reason = AwaitsDrained(*drained);
  }
  for (const auto& [key, node] : membership_.nodes()) {
    const bool is_meant = job.spec.placement.sites.empty() ||
                          std::ranges::find(job.spec.placement.sites, key.site) != job.spec.placement.sites.end();
    if (!decision.allocation.has_value() && is_meant && membership_.Rests(key)) {
      decision.reason += fmt::format("; node {} is unfit: {}", DisplayName(key), node.trouble->why);
    }
  }
  return decision;
}

AllocationDecision Placement::Decide(const Job& job, const std::set<NodeKey>& promised, Market& market) const {
  if (const size_t strays = strays_.UnknownOf(job.name()).size(); strays > 0) {
    return None(fmt::format(
        "waiting: {} of this job {} alive, and this job store is older than their run; give the coordinator its "
        "newest store, or `geopipectl resume {} --from store` stops them and goes on from what this store knows",
        Counted(static_cast<int64_t>(strays), "worker"), strays == 1 ? "is" : "are", job.name()));
  }
  if (!job.has_trained()) {
    if (const auto known = market.refused.find(job.asks); known != market.refused.end() && job.unfit.empty()) {
      return None(known->second);
    }
    AllocationDecision decision = DecideFirst(job, promised, market);
    if (!decision.allocation.has_value() && job.unfit.empty()) {
      market.refused[job.asks] = decision.reason;
    }
    return decision;
  }
  const std::vector<NodeOffer> offers = Suiting(job, Offers(), true, promised);
  if (std::optional<std::string> awaited = AwaitedBy(job); awaited.has_value()) {
    return None(*std::move(awaited));
  }
  const JobSpec spec = WithSitesOf(job.spec, offers);
  AllocationDecision decision = DecideAllocation(spec, job.options, offers);
  if (!decision.allocation.has_value()) {
    return decision;
  }
  if (job.needs_home && !std::ranges::includes(decision.allocation->nodes(), job.home)) {
    return None("waiting for all nodes that it had: it does not fit on fewer");
  }
  if (const auto misfit = Misfit(spec, EarlierOf(job), *decision.allocation); misfit.has_value()) {
    return None(fmt::format("waiting for more of its sites: {}", *misfit));
  }
  return decision;
}

AllocationDecision Placement::WouldGet(const Job& job, const std::set<NodeKey>& without, bool needs_state) const {
  if (job.options.explicit_costs.has_value()) {
    return None("its stages were given with their costs");
  }
  const std::vector<NodeOffer> offers = Suiting(job, Offers(&job), true, without);
  if (offers.empty()) {
    return None("no other node is there");
  }
  const JobSpec spec = WithSitesOf(job.spec, offers);
  AllocationDecision decision = DecideAllocation(spec, job.options, offers);
  if (decision.allocation.has_value()) {
    // Unless it needs it there, the state is written before the job leaves.
    const JobLife::Earlier earlier = needs_state ? EarlierOf(job) : JobLife::Earlier{};
    if (auto misfit = Misfit(spec, earlier, *decision.allocation); misfit.has_value()) {
      return None(*std::move(misfit));
    }
  }
  return decision;
}

AllocationDecision Placement::WouldLeaveFor(const Job& job, const std::set<NodeKey>& without) const {
  if (job.spec.checkpoint.path.empty()) {
    return None("it has no checkpoint.path to take its state along");
  }
  if (std::ranges::includes(without, job.run->life().nodes)) {
    return None("none of the nodes that it keeps could take a copy of its state");
  }
  return WouldGet(job, without, false);
}

std::optional<std::string> Placement::Misfit(const JobSpec& spec, const JobLife::Earlier& earlier,
                                             const Allocation& allocation) const {
  const std::set<NodeKey> nodes = allocation.nodes();
  if (!earlier.CanGoOnAt(nodes) && spec.checkpoint.path.empty()) {
    return "it has no checkpoint.path";
  }
  if (!earlier.CanGoOnAt(nodes)) {
    std::set<NodeKey> beyond;
    if (!earlier.checkpoints.listed.empty()) {
      for (const ListedCheckpoint::Holders& holders : earlier.checkpoints.listed.back().parts) {
        beyond.insert(holders.begin(), holders.end());
      }
    }
    std::erase_if(beyond, [&](const NodeKey& node) { return nodes.contains(node); });
    return fmt::format("no checkpoint is complete at {}{} (checkpoint.replicate: 1 keeps copies at other sites)",
                       fmt::join(allocation.site_names(), ", "),
                       beyond.empty() ? "" : fmt::format(", more of it is at {}", DisplayNames(beyond)));
  }
  if (!spec.placement.sites.empty()) {
    const absl::Status linked = links_.Declared().CheckPipeline(spec, allocation.site_names());
    if (!linked.ok()) {
      return std::string(linked.message());
    }
  }
  return std::nullopt;
}

std::vector<const Stray*> Placement::StraysOf(const Job& job, const NodeKey& key) const {
  std::vector<const Stray*> found;
  const NodeRecord* node = membership_.Find(key);
  for (int32_t device = 0; node != nullptr && device < node->spec.devices(); ++device) {
    const Stray* stray = strays_.Find({key.site, key.node, device});
    if (stray != nullptr && stray->job == job.name()) {
      found.push_back(stray);
    }
  }
  return found;
}

// One that no agent knows, or whose agent is silent, may take until its grace is over.
bool Placement::EndsSoon(const Job& job, const NodeKey& key) const {
  return membership_.IsUsable(key) && std::ranges::any_of(StraysOf(job, key), [](const Stray* stray) {
           return stray->agent != 0 && !stray->unknown;
         });
}

// Names what a job that has trained does not begin without, although there may already be enough devices.
std::optional<std::string> Placement::AwaitedBy(const Job& job) const {
  for (const NodeKey& key : job.home) {
    if (job.unfit.contains(key)) {
      continue;
    }
    if (IsDrained(key.site)) {
      if (job.needs_home) {
        return AwaitsDrained(key.site);
      }
    } else if (membership_.IsLeaving(key)) {
      if (job.needs_home || job.spec.on_site_loss == OnSiteLoss::kWait) {
        return fmt::format("waiting for node {}, which goes down, to be back", DisplayName(key));
      }
    } else if (!membership_.IsUsable(key)) {
      if (job.needs_home || job.spec.on_site_loss == OnSiteLoss::kWait || !job.IsGone(key)) {
        return fmt::format("waiting for agent {}, which is silent", DisplayName(key));
      }
    } else if (membership_.Rests(key)) {
      if (job.needs_home || job.spec.on_site_loss == OnSiteLoss::kWait || !job.IsGone(key)) {
        return fmt::format("waiting for node {}, which is unfit and tried again every 10 s: {}", DisplayName(key),
                           membership_.Find(key)->trouble->why);
      }
    } else if (!StraysOf(job, key).empty()) {
      return fmt::format("waiting for its workers on {} to end", DisplayName(key));
    }
  }
  return std::nullopt;
}

JobSpec Placement::Pinned(const Job& job, const LinkTable& links) const {
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

// --- Sites --------------------------------------------------------------------------------------------------------

std::set<NodeKey> Placement::LeftBy(const JobRun& run) const {
  std::set<NodeKey> nodes = run.life().nodes;
  std::erase_if(nodes, [&](const NodeKey& node) { return !IsLeft(node); });
  return nodes;
}

absl::Status Placement::CheckKnown(const std::string& site) const {
  const auto first = membership_.nodes().lower_bound({site, ""});
  return first != membership_.nodes().end() && first->first.site == site
             ? absl::OkStatus()
             : absl::NotFoundError(
                   fmt::format("no agent of site \"{}\" is known; `geopipectl get sites` lists them", site));
}

absl::StatusOr<v1::DrainSiteResponse> Placement::On(Now /*now*/, const DrainSite& event) {
  GP_RETURN_IF_ERROR(CheckKnown(event.site));
  v1::DrainSiteResponse response;
  response.set_already(!drained_.insert(event.site).second);
  if (!response.already()) {
    outbox_.Emit(PersistDrained{event.site, true, event.call});
    outbox_.Log(LogLevel::kInfo, "", "site {} is drained", event.site);
  }
  for (const Job* job : jobs_.Running()) {
    const std::set<NodeKey> without = LeftBy(*job->run);
    if (std::ranges::find(without, event.site, &NodeKey::site) == without.end()) {
      continue;
    }
    v1::JobAtSite& at = *response.add_jobs();
    at.set_name(job->name());
    at.set_state(job->state());
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
  outbox_.AskToSchedule();
  return response;
}

absl::StatusOr<v1::UncordonSiteResponse> Placement::On(Now /*now*/, const UncordonSite& event) {
  v1::UncordonSiteResponse response;
  response.set_already(!IsDrained(event.site));
  if (response.already()) {
    GP_RETURN_IF_ERROR(CheckKnown(event.site));
    return response;
  }
  drained_.erase(event.site);
  outbox_.Emit(PersistDrained{event.site, false, event.call});
  outbox_.Log(LogLevel::kInfo, "", "site {} is in use again", event.site);
  outbox_.AskToSchedule();
  return response;
}

absl::Status Placement::On(Now /*now*/, const DrainNotStored& event) {
  if (event.drained) {
    drained_.erase(event.site);
  } else {
    drained_.insert(event.site);
  }
  outbox_.Log(LogLevel::kError, "", std::string(event.status.message()));
  outbox_.AskToSchedule();
  return absl::InternalError(event.status.message());
}

absl::StatusOr<v1::ListSitesResponse> Placement::On(Now now, const ListSites& /*event*/) const {
  const std::vector<Job*> running = jobs_.Running();
  v1::ListSitesResponse response;
  for (const auto& [key, refusal] : membership_.refusals()) {
    v1::RefusedAgent& refused = *response.add_refused();
    refused.set_site(key.site);
    refused.set_node(key.node);
    refused.set_why(ToUtf8(refusal.why));
    refused.set_age_ns(now.ns - refusal.at_ns);
  }
  v1::SiteStatus* site = nullptr;
  for (const auto& [key, node] : membership_.nodes()) {
    if (site == nullptr || site->name() != key.site) {
      site = response.add_sites();
      site->set_name(key.site);
      site->set_drained(IsDrained(key.site));
    }
    v1::NodeStatus& status = *site->add_nodes();
    *status.mutable_spec() = node.spec;
    status.set_connected(node.usable());
    status.set_incarnation(node.incarnation);
    status.set_version(node.version);
    status.set_last_heartbeat_age_ns(std::max<int64_t>(0, now.ns - node.last_heard_ns));
    if (node.leaves_ns.has_value()) {
      status.set_leaving(true);
      status.set_leaves_within_ns(std::max<int64_t>(0, *node.leaves_ns - now.ns));
    }
    if (node.trouble.has_value()) {
      status.set_trouble(ToUtf8(node.trouble->why));
      status.set_trouble_ns(now.ns - node.trouble->since_ns);
    }
    for (const WorkerKey& worker : strays_.UnknownAt(key)) {
      const Stray& stray = *strays_.Find(worker);
      v1::StrayWorker& told = *status.add_strays();
      told.set_job(stray.job);
      told.set_device(worker.device);
      told.set_age_ns(now.ns - stray.noted_ns);
      told.set_stopped_in_ns(std::max<int64_t>(0, stray.noted_ns + Strays::kUnknownNs - now.ns));
    }
    for (const Job* job : running) {
      if (job->run->life().nodes.contains(key)) {
        const auto workers = std::ranges::count_if(job->run->life().posts, [&node = key](const auto& entry) {
          return entry.first.node_key() == node && entry.second.duty != Post::Duty::kStopped;
        });
        *status.mutable_workers_summary() +=
            fmt::format("{}{} running: {}", status.workers_summary().empty() ? "" : ", ", workers, job->name());
      }
    }
  }
  return response;
}

}  // namespace geopipe
