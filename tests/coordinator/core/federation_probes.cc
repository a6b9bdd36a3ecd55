// Answers probes of links for the model federation, and checks their rules.
#include <utility>

#include "tests/coordinator/core/federation.h"
#include "tests/support/durations.h"

namespace geopipe {

NodeKey NodeNamed(const std::string& name) {
  const size_t slash = name.find('/');
  return {name.substr(0, slash), slash == std::string::npos ? "n0" : name.substr(slash + 1)};
}

std::string NameOf(const NodeKey& node) { return node.node == "n0" ? node.site : DisplayName(node); }

CoordinatorOptions Federation::ProbingOptions() {
  CoordinatorOptions options = DefaultOptions();
  options.probing.interval_ns = 60 * kSecond;
  return options;
}

// An agent that has lost the stream by which it was ordered has given its probe up.
bool Federation::UnderWay(const ProbeUnderWay& each) {
  const auto holds = [&](const std::string& name, SessionId session) {
    return name.empty() || (open.contains(session) && sessions[name] == session);
  };
  return holds(each.waiter, each.waiter_session) && holds(each.dialer, each.dialer_session);
}

void Federation::CheckProbe(const SendToAgent& send) {
  const auto fail = [&](const std::string& what) { broken = broken.empty() ? what : broken; };
  const std::string name = NameOf(node_of_[send.session]);
  if (send.message.has_end_probe() && probe.has_value() && probe->probe == send.message.end_probe().probe()) {
    probe.reset();
  }
  if (!send.message.has_probe_link()) {
    return;
  }
  const v1::ProbeLink& order = send.message.probe_link();
  if (order.address().empty()) {
    if (probe.has_value() && UnderWay(*probe)) {
      fail("a probe began before the one before had ended");
    }
    const JobState state = persisted["tiny"].empty() ? v1::JOB_STATE_UNSPECIFIED : persisted["tiny"].back();
    if (state != v1::JOB_STATE_UNSPECIFIED && state != v1::JOB_STATE_PENDING && !IsFinal(state)) {
      fail("a link of a running job was probed");
    }
    probe = ProbeUnderWay{.probe = order.probe(), .waiter = name, .dialer = "", .waiter_session = send.session};
    ++probes;
  } else if (!probe.has_value() || probe->probe != order.probe() || name == probe->waiter ||
             node_of_[send.session].site != order_to_dial_) {
    fail("an order to dial of no probe under way");
  } else {
    probe->dialer = name;
    probe->dialer_session = send.session;
  }
  if (order.address().empty()) {
    order_to_dial_ = order.to_site();
  }
}

void Federation::ReportProbe(const std::string& name, v1::ProbeReport report) {
  AgentMessage event{sessions[name], {}};
  event.message.set_incarnation(agent_incarnation_[sessions[name]]);
  *AddReport(event).mutable_probe() = std::move(report);
  Step(std::move(event));
}

void Federation::OpenProbe() {
  if (probe.has_value() && probe->dialer.empty()) {
    v1::ProbeReport report;
    report.set_probe(probe->probe);
    report.mutable_opened()->set_address("address of " + probe->waiter);
    report.mutable_opened()->set_secret("secret of " + probe->waiter);
    ReportProbe(std::string(probe->waiter), std::move(report));
  }
}

void Federation::MeasureProbe(int64_t latency_ns, double outbound_bytes_per_s, double inbound_bytes_per_s) {
  if (probe.has_value() && !probe->dialer.empty()) {
    v1::ProbeReport report;
    report.set_probe(probe->probe);
    v1::LinkMeasurement& outbound = *report.mutable_measured()->mutable_outbound();
    outbound.set_latency_ns(latency_ns);
    outbound.set_latency_median_ns(latency_ns + 100);
    outbound.set_latency_spread_ns(50);
    outbound.set_latency_samples(16);
    outbound.set_bandwidth_samples(3);
    *report.mutable_measured()->mutable_inbound() = outbound;
    outbound.set_bandwidth_bytes_per_s(outbound_bytes_per_s);
    report.mutable_measured()->mutable_inbound()->set_bandwidth_bytes_per_s(inbound_bytes_per_s);
    ReportProbe(std::string(probe->dialer), std::move(report));
  }
}

void Federation::FailProbe() {
  if (probe.has_value()) {
    v1::ProbeReport report;
    report.set_probe(probe->probe);
    report.mutable_failed()->set_message("no device");
    ReportProbe(std::string(probe->dialer.empty() ? probe->waiter : probe->dialer), std::move(report));
  }
}

void Federation::AnswerProbes() {
  for (int i = 0; i < 100 && probe.has_value(); ++i) {
    OpenProbe();
    MeasureProbe();
  }
}

}  // namespace geopipe
