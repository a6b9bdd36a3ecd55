// Links, and networks inside sites: probes of idle ones, traffic of busy ones, and jobs that wait to know them.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "coordinator/core/coordinator.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/cluster_wire.h"

namespace geopipe {
namespace {

// Links between sites that a plan depends on: those between neighbours of the pipeline, or all of them if the planner
// chooses the order.
std::vector<SitePair> NeededLinks(const JobSpec& job, const std::vector<std::string>& sites) {
  std::vector<SitePair> pairs;
  for (size_t i = 0; i < sites.size(); ++i) {
    const size_t last = job.placement.sites.empty() ? sites.size() : std::min(i + 2, sites.size());
    for (size_t j = i + 1; j < last; ++j) {
      pairs.push_back(PairOf(sites[i], sites[j]));
    }
  }
  return pairs;
}

}  // namespace

LinkProbing::View Coordinator::ViewOf(const LinkTable& links) const {
  LinkProbing::View view{.nodes = membership_.nodes(), .links = links, .busy = {}};
  for (const auto& [name, job] : jobs_) {
    if (job->run != nullptr) {
      for (const NodeKey& node : job->run->life().nodes) {
        view.busy.insert(node.site);
      }
    }
  }
  return view;
}

void Coordinator::ProbeLinks(Now now) {
  if (options_.probing.interval_ns <= 0) {
    return;
  }
  const LinkTable links = LinkTable::Of(membership_.nodes());
  probing_.Want(wanted_links_);
  CarryOut(now, probing_.Update(now.ns, ViewOf(links)));
  probe_ = false;
}

void Coordinator::CarryOut(Now now, ProbeStep step) {
  for (ProbeMessage& message : step.sends) {
    const NodeRecord* node = membership_.Find(message.node);
    if (node != nullptr && node->session.has_value()) {
      Emit(SendToAgent{*node->session, std::move(message.message)});
    }
  }
  if (step.success.has_value()) {
    const ProbeStep::Success& success = *step.success;
    const v1::LinkMeasurement& outbound = success.measured.outbound();
    const v1::LinkMeasurement& inbound = success.measured.inbound();
    const auto note = [&](const std::string& from, const std::string& to, const v1::LinkMeasurement& measured) {
      measured_.AddProbe(now.ns, from, to, measured);
      dirty_links_.insert({from, to});
      Emit(LinkMeasured{from, to, measured_.Find(from, to)->value});
    };
    if (success.from == success.to) {  // one figure, of the worse direction
      note(success.from, success.to,
           outbound.bandwidth_bytes_per_s() < inbound.bandwidth_bytes_per_s() ? outbound : inbound);
    } else {
      note(success.from, success.to, outbound);
      note(success.to, success.from, inbound);
    }
  }
  if (step.failure.has_value()) {
    const ProbeStep::Failure& failure = *step.failure;
    Log(LogLevel::kWarning, "",
        fmt::format("the probe of the link {} failed ({} in a row): {}", PlaceOf(failure.sites), failure.failures,
                    failure.why));
  }
  if (step.success.has_value() || step.failure.has_value()) {
    schedule_ = true;  // jobs may have waited for it, and the next link may be due
  }
}

void Coordinator::NoteTraffic(Now now, const std::vector<TrafficObservation>& traffic) {
  for (const TrafficObservation& observation : traffic) {
    if (measured_.AddTraffic(now.ns, observation)) {
      dirty_links_.insert({observation.from_site, observation.to_site});
      Emit(LinkMeasured{observation.from_site, observation.to_site,
                        measured_.Find(observation.from_site, observation.to_site)->value});
    }
  }
}

// Messages inside a host take no time of this run's own when the job's device time is kept.
bool Coordinator::TakesMeasuredNetwork(const Job& job, const std::string& site) const {
  std::set<std::string_view> hosts;
  for (const auto& [key, node] : membership_.nodes()) {
    if (key.site == site) {
      hosts.insert(node.host);
    }
  }
  return !KeepsDeviceTime(job.options) || hosts.size() > 1;
}

void Coordinator::AddMeasuredNetworks(const Job& job, std::vector<NodeOffer>& offers) const {
  const LinkTable links = LinkTable::Of(membership_.nodes());
  for (NodeOffer& offer : offers) {
    const std::optional<NetworkSpec> network = links.NetworkInside(offer.key.site, measured_);
    if (network.has_value() && TakesMeasuredNetwork(job, offer.key.site)) {
      *offer.spec.mutable_network() = ToProto(*network);
    }
  }
}

bool Coordinator::LinksReady(Now now, Job& job, const Allocation& allocation) {
  // Explicit costs bring their own links.
  if (options_.probing.interval_ns <= 0 || job.options.explicit_costs.has_value()) {
    return true;
  }
  const LinkTable links = LinkTable::Of(membership_.nodes());
  const LinkProbing::View view = ViewOf(links);
  std::vector<SitePair> missing = NeededLinks(job.spec, allocation.site_names());
  for (const AllocatedSite& site : allocation.sites) {
    if (site.nodes.size() > 1 && TakesMeasuredNetwork(job, site.name)) {
      missing.push_back(InsideOf(site.name));
    }
  }
  std::erase_if(missing, [&](const SitePair& pair) { return probing_.Settled(pair, view); });
  if (missing.empty()) {
    return true;
  }
  if (job.links_by_ns == Job::kNoDeadlineNs) {
    job.links_by_ns = now.ns + options_.probing.job_wait_ns;
  }
  const std::string first = PlaceOf(missing.front());
  if (now.ns >= job.links_by_ns) {
    Log(LogLevel::kWarning, job.name(),
        fmt::format("{} not probed within {}, the first {}: the plan uses what is known of them",
                    Counted(std::ssize(missing), "link"), FormatSeconds(options_.probing.job_wait_ns), first));
    return true;
  }
  const std::string waiting =
      fmt::format("waiting for {} to be probed, the first {}", Counted(std::ssize(missing), "link"), first);
  if (job.waiting_for != waiting) {
    job.waiting_for = waiting;
    Log(LogLevel::kInfo, job.name(), waiting);
  }
  wanted_links_.insert(wanted_links_.end(), missing.begin(), missing.end());
  return false;
}

}  // namespace geopipe
