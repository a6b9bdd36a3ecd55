#include "coordinator/core/link_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

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

void LinkMonitor::Restore(Now now, const std::vector<StoredLink>& links) {
  for (const StoredLink& link : links) {
    const int64_t age_ns = std::max<int64_t>(0, now.unix_ns - link.unix_time_ns);
    measured_.Restore(now.ns - age_ns, link.from_site, link.to_site, link.value, link.from_traffic);
    outbox_.Emit(LinkMeasured{link.from_site, link.to_site, link.value});
  }
}

absl::StatusOr<v1::ListLinksResponse> LinkMonitor::On(Now now, const ListLinks& /*event*/) const {
  v1::ListLinksResponse response;
  for (v1::LinkStatus& status : Declared().Statuses(now.ns, measured_)) {
    status.set_trouble(probing_.TroubleOf(PairOf(status.from_site(), status.to_site())));
    *response.add_links() = std::move(status);
  }
  return response;
}

// Messages inside a host take no time of this run's own when the job's device time is kept.
bool LinkMonitor::TakesMeasuredNetwork(const Job& job, const std::string& site) const {
  std::set<std::string_view> hosts;
  for (const auto& [key, node] : membership_.nodes()) {
    if (key.site == site) {
      hosts.insert(node.host);
    }
  }
  return !KeepsDeviceTime(job.options) || hosts.size() > 1;
}

void LinkMonitor::AddMeasuredNetworks(const Job& job, std::vector<NodeOffer>& offers) const {
  const LinkTable links = Declared();
  for (NodeOffer& offer : offers) {
    const std::optional<NetworkSpec> network = links.NetworkInside(offer.key.site, measured_);
    if (network.has_value() && TakesMeasuredNetwork(job, offer.key.site)) {
      *offer.spec.mutable_network() = ToProto(*network);
    }
  }
}

// --- Agents and probes --------------------------------------------------------------------------------------------

LinkMonitor::News LinkMonitor::NewsIn(const v1::AgentHello& hello) const {
  const NodeKey key{hello.node().site(), hello.node().node()};
  const NodeRecord* known = membership_.Find(key);
  if (known == nullptr) {
    const auto first = membership_.nodes().lower_bound({key.site, ""});
    return first == membership_.nodes().end() || first->first.site != key.site ? News::kFirstLinks : News::kNothing;
  }
  const bool same = std::ranges::equal(known->links, hello.links(), {}, &v1::LinkDeclaration::SerializeAsString,
                                       &v1::LinkDeclaration::SerializeAsString);
  return same ? News::kNothing : News::kOtherLinks;
}

void LinkMonitor::OnDeclared(const NodeKey& node, News news) {
  if (news != News::kNothing) {
    probing_.Renew(node.site);
  }
  if (news == News::kOtherLinks) {
    measured_.Forget(node.site);
  }
  std::vector<std::string> disputes = Declared().Disputes();
  for (const std::string& dispute : disputes) {
    if (std::ranges::find(disputes_, dispute) == disputes_.end()) {
      outbox_.Log(LogLevel::kWarning, "", dispute);
    }
  }
  disputes_ = std::move(disputes);
}

void LinkMonitor::OnTick(Now now) {
  if (now.ns >= probing_.next_ns()) {
    CarryOut(now, probing_.OnTick(now.ns));
    is_time_ = true;
  }
}

void LinkMonitor::Probe(Now now, bool changed) {
  if (!std::exchange(is_time_, false) && !changed) {
    return;
  }
  if (options_.interval_ns > 0) {
    const LinkTable links = Declared();
    probing_.Want(wanted_);
    CarryOut(now, probing_.Update(now.ns, ViewOf(links)));
  }
}

LinkProbing::View LinkMonitor::ViewOf(const LinkTable& links) const {
  LinkProbing::View view{.nodes = membership_.nodes(), .links = links, .busy = {}};
  for (const Job* job : jobs_.Running()) {
    for (const NodeKey& node : job->run->life().nodes) {
      view.busy.insert(node.site);
    }
  }
  return view;
}

void LinkMonitor::CarryOut(Now now, ProbeStep step) {
  for (ProbeMessage& message : step.sends) {
    if (const std::optional<SessionId> session = membership_.SessionOf(message.node); session.has_value()) {
      outbox_.Emit(SendToAgent{*session, std::move(message.message)});
    }
  }
  if (step.success.has_value()) {
    const auto& [from, to, measured] = *step.success;
    const auto add = [&, now](const std::string& a, const std::string& b, const v1::LinkMeasurement& measurement) {
      measured_.AddProbe(now.ns, a, b, measurement);
      NoteMeasured(a, b);
    };
    if (from == to) {  // one figure, of the worse direction
      const bool out_is_worse =
          measured.outbound().bandwidth_bytes_per_s() < measured.inbound().bandwidth_bytes_per_s();
      add(from, to, out_is_worse ? measured.outbound() : measured.inbound());
    } else {
      add(from, to, measured.outbound());
      add(to, from, measured.inbound());
    }
  }
  if (step.failure.has_value()) {
    outbox_.Log(LogLevel::kWarning, "", "the probe of the link {} failed ({} in a row): {}",
                PlaceOf(step.failure->sites), step.failure->failures, step.failure->why);
  }
  if (step.success.has_value() || step.failure.has_value()) {
    outbox_.AskToSchedule();  // jobs may have waited for it, and the next link may be due
  }
}

void LinkMonitor::NoteMeasured(const std::string& from, const std::string& to) {
  not_stored_.insert({from, to});
  outbox_.Emit(LinkMeasured{from, to, measured_.Find(from, to)->value});
}

// --- Jobs and the store -------------------------------------------------------------------------------------------

void LinkMonitor::OnTraffic(Now now, const std::vector<TrafficObservation>& traffic) {
  for (const TrafficObservation& observation : traffic) {
    if (measured_.AddTraffic(now.ns, observation)) {
      NoteMeasured(observation.from_site, observation.to_site);
    }
  }
}

std::string LinkMonitor::AwaitedBy(Now now, Job& job, const Allocation& allocation) {
  // Explicit costs bring their own links.
  if (options_.interval_ns <= 0 || job.options.explicit_costs.has_value()) {
    return "";
  }
  const LinkTable links = Declared();
  const LinkProbing::View view = ViewOf(links);
  std::vector<SitePair> missing = NeededLinks(job.spec, allocation.site_names());
  for (const AllocatedSite& site : allocation.sites) {
    if (site.nodes.size() > 1 && TakesMeasuredNetwork(job, site.name)) {
      missing.push_back(InsideOf(site.name));
    }
  }
  std::erase_if(missing, [&](const SitePair& pair) { return probing_.Settled(pair, view); });
  if (missing.empty()) {
    return "";
  }
  if (job.links_by_ns == Job::kNoDeadlineNs) {
    job.links_by_ns = now.ns + options_.job_wait_ns;
  }
  const std::string count = Counted(std::ssize(missing), "link");
  const std::string first = PlaceOf(missing.front());
  if (now.ns >= job.links_by_ns) {
    outbox_.Log(LogLevel::kWarning, job.name(),
                "{} not probed within {}, the first {}: the plan uses what is known of them", count,
                FormatSeconds(options_.job_wait_ns), first);
    return "";
  }
  for (const SitePair& pair : missing) {
    if (std::ranges::find(wanted_, pair) == wanted_.end()) {
      wanted_.push_back(pair);
    }
  }
  return fmt::format("waiting for {} to be probed, the first {}", count, first);
}

std::vector<StoredLink> LinkMonitor::TakeUnstored(Now now) {
  std::vector<StoredLink> links;
  for (const auto& [from, to] : std::exchange(not_stored_, {})) {
    if (const MeasuredDirection* direction = measured_.Find(from, to); direction != nullptr) {
      links.push_back({.from_site = from,
                       .to_site = to,
                       .value = direction->value,
                       .from_traffic = direction->from_traffic,
                       .unix_time_ns = now.unix_ns});
    }
  }
  return links;
}

void LinkMonitor::NoteUnstored(const std::vector<StoredLink>& links) {
  for (const StoredLink& link : links) {
    not_stored_.insert({link.from_site, link.to_site});
  }
}

}  // namespace geopipe
