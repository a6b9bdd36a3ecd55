#include "coordinator/cluster/link_probing.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/backoff.h"

namespace geopipe {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int kFailuresToWaitFor = 2;

struct Ends {
  NodeKey waiter;
  NodeKey dialer;
};

// The site's nodes that take orders, by name.
std::vector<NodeKey> UsableOf(const std::map<NodeKey, NodeRecord>& nodes, const std::string& site) {
  std::vector<NodeKey> usable;
  for (auto it = nodes.lower_bound({site, ""}); it != nodes.end() && it->first.site == site; ++it) {
    if (it->second.well()) {
      usable.push_back(it->first);
    }
  }
  return usable;
}

// Chooses a node of each site, or two of one site. After failures it chooses others and lets the other end dial,
// because some sites cannot be reached from outside.
std::optional<Ends> EndsOf(const std::map<NodeKey, NodeRecord>& nodes, const SitePair& pair, int failures) {
  const std::vector<NodeKey> first = UsableOf(nodes, pair.first);
  const std::vector<NodeKey> second = UsableOf(nodes, pair.second);
  const size_t apart = IsInside(pair) ? 1 : 0;
  if (first.size() <= apart || second.empty()) {
    return std::nullopt;
  }
  const size_t turn = static_cast<size_t>(failures) / 2;
  Ends ends{.waiter = second[(turn + apart) % second.size()], .dialer = first[turn % first.size()]};
  if (failures % 2 == 1) {
    std::swap(ends.waiter, ends.dialer);
  }
  return ends;
}

}  // namespace

bool LinkProbing::Possible(const SitePair& pair, const View& view) const {
  return options_.interval_ns > 0 && view.links.Find(pair.first, pair.second) != nullptr &&
         !view.busy.contains(pair.first) && !view.busy.contains(pair.second) && EndsOf(view.nodes, pair, 0).has_value();
}

bool LinkProbing::Settled(const SitePair& pair, const View& view) const {
  const auto found = links_.find(pair);
  const bool tried = found != links_.end() && (found->second.probed || found->second.failures >= kFailuresToWaitFor);
  return tried || !Possible(pair, view);
}

void LinkProbing::Renew(const std::string& site) {
  for (auto& [pair, link] : links_) {
    if (pair.first == site || pair.second == site) {
      link = {};
    }
  }
  next_due_ns_ = 0;
}

int64_t LinkProbing::next_ns() const { return active_.has_value() ? active_->deadline_ns : next_due_ns_; }

std::string LinkProbing::TroubleOf(const SitePair& pair) const {
  const auto found = links_.find(pair);
  return found == links_.end() ? "" : found->second.trouble;
}

// --- Beginning ----------------------------------------------------------------------------------------------------

ProbeStep LinkProbing::Update(int64_t now_ns, const View& view) {
  ProbeStep step;
  if (active_.has_value() && (view.busy.contains(active_->sites.first) || view.busy.contains(active_->sites.second))) {
    End(step);  // no failure: it is due again as soon as the job has gone
  }
  if (!active_.has_value()) {
    if (const std::optional<SitePair> pair = NextDue(now_ns, view); pair.has_value()) {
      Begin(now_ns, *pair, view, step);
    }
  }
  return step;
}

std::optional<SitePair> LinkProbing::NextDue(int64_t now_ns, const View& view) {
  next_due_ns_ = kNever;
  std::optional<SitePair> due;
  if (options_.interval_ns <= 0) {
    return due;
  }
  for (const SitePair& pair : wanted_) {
    if (Possible(pair, view) && !Settled(pair, view) && links_[pair].due_ns <= now_ns) {
      return pair;
    }
  }
  int64_t due_ns = now_ns;
  for (const SitePair& pair : view.links.Pairs()) {
    if (!Possible(pair, view)) {
      continue;
    }
    const Link& link = links_[pair];
    next_due_ns_ = std::min(next_due_ns_, link.due_ns);
    if (link.due_ns <= due_ns && (!due.has_value() || link.due_ns < due_ns)) {
      due = pair;
      due_ns = link.due_ns;
    }
  }
  return due;
}

void LinkProbing::Begin(int64_t now_ns, const SitePair& pair, const View& view, ProbeStep& step) {
  const Link& state = links_[pair];
  const MergedLink& link = *view.links.Find(pair.first, pair.second);
  const Ends ends = *EndsOf(view.nodes, pair, state.failures);
  active_ = Active{.probe = next_probe_++,
                   .sites = pair,
                   .waiter = ends.waiter,
                   .dialer = ends.dialer,
                   .deadline_ns = now_ns + options_.open_timeout_ns,
                   .latency_ns = link.latency_ns,
                   .bandwidth_bytes_per_s = link.bandwidth_bytes_per_s,
                   .dialer_shaped = link.ShapedBy(ends.dialer.site)};
  v1::ConnectResponse order = Order(active_->waiter);
  order.mutable_probe_link()->set_shaped(link.ShapedBy(ends.waiter.site));
  order.mutable_probe_link()->set_limit_ns(options_.open_timeout_ns + options_.run_timeout_ns);
  step.sends.push_back({active_->waiter, std::move(order)});
}

v1::ConnectResponse LinkProbing::Order(const NodeKey& node) const {
  v1::ConnectResponse message;
  v1::ProbeLink& order = *message.mutable_probe_link();
  order.set_probe(active_->probe);
  order.set_to_site(node == active_->waiter ? active_->dialer.site : active_->waiter.site);
  order.set_latency_ns(active_->latency_ns);
  order.set_bandwidth_bytes_per_s(active_->bandwidth_bytes_per_s);
  order.set_budget_ns(options_.budget_ns);
  return message;
}

// --- Going on and ending ------------------------------------------------------------------------------------------

ProbeStep LinkProbing::OnReport(int64_t now_ns, const NodeKey& node, const v1::ProbeReport& report) {
  ProbeStep step;
  const bool known = active_.has_value() && active_->probe == report.probe();
  if (!known || (node != active_->waiter && node != active_->dialer)) {
    return step;
  }
  if (report.has_failed()) {
    Fail(now_ns, fmt::format("{}: {}", DisplayName(node), report.failed().message()), step);
  } else if (report.has_opened() && node == active_->waiter && !active_->running) {
    active_->running = true;
    active_->deadline_ns = now_ns + options_.run_timeout_ns;
    v1::ConnectResponse order = Order(active_->dialer);
    order.mutable_probe_link()->set_address(report.opened().address());
    order.mutable_probe_link()->set_secret(report.opened().secret());
    order.mutable_probe_link()->set_shaped(active_->dialer_shaped);
    // The dialer gives up, and says why, before the coordinator ends the probe.
    order.mutable_probe_link()->set_limit_ns(std::max<int64_t>(1, options_.run_timeout_ns * 3 / 4));
    step.sends.push_back({active_->dialer, std::move(order)});
  } else if (report.has_measured() && node == active_->dialer && active_->running) {
    Link& link = links_[active_->sites];
    link = {
        .due_ns = now_ns + LengthenedNs(options_.interval_ns, jitter_), .failures = 0, .probed = true, .trouble = ""};
    step.success = ProbeStep::Success{active_->dialer.site, active_->waiter.site, report.measured()};
    End(step);
  }
  return step;
}

ProbeStep LinkProbing::OnNodeGone(int64_t now_ns, const NodeKey& node) {
  ProbeStep step;
  if (active_.has_value() && (node == active_->waiter || node == active_->dialer)) {
    Fail(now_ns, fmt::format("the stream of agent {} has ended", DisplayName(node)), step);
    std::erase_if(step.sends, [&](const ProbeMessage& message) { return message.node == node; });
  }
  return step;
}

ProbeStep LinkProbing::OnTick(int64_t now_ns) {
  ProbeStep step;
  if (active_.has_value() && now_ns >= active_->deadline_ns) {
    Fail(now_ns,
         active_->running ? fmt::format("agent {} did not measure it within {}", DisplayName(active_->dialer),
                                        FormatSeconds(options_.run_timeout_ns))
                          : fmt::format("agent {} was not ready within {}", DisplayName(active_->waiter),
                                        FormatSeconds(options_.open_timeout_ns)),
         step);
  }
  return step;
}

void LinkProbing::Fail(int64_t now_ns, const std::string& why, ProbeStep& step) {
  Link& link = links_[active_->sites];
  ++link.failures;
  link.due_ns = now_ns + BackoffNs(options_.first_retry_ns, options_.interval_ns, link.failures, jitter_);
  link.trouble = why;
  step.failure = ProbeStep::Failure{active_->sites, why, link.failures};
  End(step);
}

// Ends the probe, and tells the ends that may still be at it.
void LinkProbing::End(ProbeStep& step) {
  for (const NodeKey& node : {active_->waiter, active_->dialer}) {
    if (node == active_->waiter || active_->running) {
      v1::ConnectResponse message;
      message.mutable_end_probe()->set_probe(active_->probe);
      step.sends.push_back({node, std::move(message)});
    }
  }
  active_.reset();
  next_due_ns_ = 0;
}

}  // namespace geopipe
