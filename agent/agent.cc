#include "agent/agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "agent/overloaded.h"
#include "optimizer/base/quantities.h"
#include "proto/wire/cluster_wire.h"
#include "proto/wire/schedule_wire.h"

namespace geopipe::agent {
namespace {

// The process is woken more often than this, so a longer gap means that it was itself stopped, and others were not
// silent for the excess.
constexpr int64_t kMaxAwakeNs = 1'000'000'000;

WorkerFleetOptions FleetOptions(const AgentOptions& options) {
  WorkerFleetOptions fleet = options.fleet;
  fleet.incarnation = options.incarnation;
  return fleet;
}

}  // namespace

Agent::Agent(AgentConfig config, const AgentOptions& options)
    : config_(std::move(config)),
      options_(options),
      link_(
          {.incarnation = options.incarnation,
           .seed = options.seed,
           .gather_ns = options.gather_ns,
           .known_coordinator = options.known_coordinator,
           .federation = options.federation,
           .incarnation_file = options.incarnation_file},
          [this] { return Hello(); }, [this](const v1::NodeReport& report) { fleet_.OnTaken(report); }),
      fleet_(config_, FleetOptions(options), [this](v1::NodeReport report) { link_.Send(std::move(report)); }) {}

v1::AgentHello Agent::Hello() const {
  v1::AgentHello hello;
  v1::NodeSpec& node = *hello.mutable_node();
  node.set_site(config_.site);
  node.set_node(config_.node);
  node.set_devices(config_.devices);
  *node.mutable_device() = ToProto(config_.device);
  if (config_.network.spec.given()) {
    *node.mutable_network() = ToProto(config_.network.spec);
    node.set_network_is_shaped(config_.network.shape);
  }
  node.set_host_memory_bytes(options_.host_memory_bytes);
  for (const RefusedBackend& refused : options_.refused_backends) {
    v1::RefusedBackend& told = *node.add_refused_backends();
    told.set_backend(ToProto(refused.backend));
    told.set_reason(refused.reason);
  }
  hello.set_version(options_.version);
  hello.set_host(options_.host);
  hello.set_pid(options_.pid);
  for (const LinkConfig& link : config_.links) {
    v1::LinkDeclaration& declaration = *hello.add_links();
    declaration.set_to_site(link.to);
    declaration.set_latency_ns(link.latency_ns);
    declaration.set_bandwidth_bytes_per_s(link.bandwidth_bytes_per_s);
    declaration.set_shaped(link.shape);
  }
  hello.set_orphan_grace_ns(config_.orphan_grace_ns);
  fleet_.Describe(hello);
  return hello;
}

int64_t Agent::next_deadline_ns() const {
  int64_t next_ns = fleet_.next_deadline_ns();
  if (!shutting_down_ && fleet_.listed()) {
    next_ns = std::min(next_ns, link_.next_deadline_ns());
  }
  // A process that measures the silence of others has to know when it was stopped itself.
  const bool listens = fleet_.listens() || link_.registered();
  return listens ? std::min(next_ns, *last_step_ns_ + kMaxAwakeNs) : next_ns;
}

Effects Agent::Step(int64_t now_ns, Event event) {
  Effects effects;
  if (exited_) {
    return effects;
  }
  awake_ns_ += std::min(now_ns - last_step_ns_.value_or(now_ns), kMaxAwakeNs);
  last_step_ns_ = now_ns;
  fleet_.SetPauses(now_ns - awake_ns_);
  std::visit(Overloaded{
                 [&](CoordinatorMessage& e) {
                   if (const auto order = link_.OnMessage(now_ns, e, effects); order.has_value() && !shutting_down_) {
                     OnOrder(now_ns, *order, effects);
                     link_.Took(*order);
                   }
                 },
                 [&](CoordinatorSent& e) { link_.OnSent(e); },
                 [&](CoordinatorClosed& e) {
                   link_.OnClosed(now_ns, e, effects);
                   OnRefused(now_ns, effects);
                 },
                 [&](KeeperListed& e) { fleet_.OnListed(now_ns, e, effects); },
                 [&](NodeLeaves& e) { link_.SetLeaving(now_ns, e.within_ns); },
                 [&](WorkerStarted& e) { fleet_.OnStarted(e, effects); },
                 [&](WorkerStartFailed& e) { fleet_.OnStartFailed(now_ns, e, effects); },
                 [&](WorkerExited& e) { fleet_.OnExited(now_ns, std::move(e), effects); },
                 [&](WorkerMessage& e) { fleet_.OnMessage(std::move(e), effects); },
                 [&](WorkerClosed& e) { fleet_.OnClosed(now_ns, e, effects); },
                 [&](ProbeNews& e) { OnProbeNews(std::move(e)); },
                 [&](Shutdown& e) { OnShutdown(now_ns, e.reason, effects); },
                 [](Tick&) {},
             },
             event);
  OnTime(now_ns, effects);
  return effects;
}

void Agent::OnOrder(int64_t now_ns, v1::ConnectResponse order, Effects& effects) {
  if (order.has_start_workers()) {
    fleet_.Start(now_ns, order.start_workers(), effects);
  } else if (order.has_stop_workers()) {
    fleet_.Stop(now_ns, order.stop_workers(), effects);
  } else if (order.has_command()) {
    fleet_.Relay(now_ns, std::move(*order.mutable_command()), effects);
  } else if (order.has_probe_link()) {
    OnProbeOrder(std::move(*order.mutable_probe_link()), effects);
  } else if (order.has_end_probe() && probes_.erase(order.end_probe().probe()) > 0) {
    effects.emplace_back(StopProbe{order.end_probe().probe()});
  }
}

void Agent::OnProbeOrder(v1::ProbeLink order, Effects& effects) {
  if (probes_.contains(order.probe())) {
    return;
  }
  if (probes_.size() >= options_.max_probes) {
    v1::NodeReport report;
    report.mutable_probe()->set_probe(order.probe());
    v1::ProbeFailed& failed = *report.mutable_probe()->mutable_failed();
    failed.set_code(static_cast<int32_t>(absl::StatusCode::kResourceExhausted));
    failed.set_message(fmt::format("{} probes are under way on this node", probes_.size()));
    link_.Send(std::move(report));
    return;
  }
  probes_.insert(order.probe());
  std::string pacer_path = order.shaped() ? config_.PacerPath(order.to_site()) : "";
  effects.emplace_back(StartProbe{std::move(order), std::move(pacer_path)});
}

void Agent::OnProbeNews(ProbeNews event) {
  if (!probes_.contains(event.report.probe())) {
    return;
  }
  if (!event.report.has_opened()) {
    probes_.erase(event.report.probe());
  }
  v1::NodeReport report;
  *report.mutable_probe() = std::move(event.report);
  link_.Send(std::move(report));
}

void Agent::StopProbes(Effects& effects) {
  for (const uint64_t probe : probes_) {
    effects.emplace_back(StopProbe{probe});
  }
  probes_.clear();
}

void Agent::OnShutdown(int64_t now_ns, const std::string& reason, Effects& effects) {
  if (config_.die_with_parent) {
    effects.emplace_back(WriteLog{LogLevel::kInfo, fmt::format("{}: stopping the workers", reason)});
    // A second request ends the wait.
    fleet_.StopAll(now_ns, shutting_down_ ? 0 : options_.shutdown_grace_ns, reason, effects);
  } else {
    effects.emplace_back(WriteLog{
        LogLevel::kInfo, fmt::format("{}: leaving; {} left running", reason, Counted(fleet_.LivingCount(), "worker"))});
  }
  StopProbes(effects);
  shutting_down_ = true;
}

void Agent::OnRefused(int64_t now_ns, Effects& effects) {
  if (link_.refusal().ok() || shutting_down_) {
    return;
  }
  failure_ =
      absl::Status(link_.refusal().code(), fmt::format("the coordinator at {} refuses this agent: {}",
                                                       config_.coordinator, std::string(link_.refusal().message())));
  OnShutdown(now_ns, "refused by the coordinator", effects);
}

void Agent::OnTime(int64_t now_ns, Effects& effects) {
  fleet_.OnTime(now_ns, link_.full(), effects);
  if (!shutting_down_ && fleet_.listed()) {
    link_.OnTime(now_ns, awake_ns_, effects);
    if (!link_.registered()) {
      StopProbes(effects);
    }
  }
  link_.Flush(now_ns, shutting_down_, effects);
  if (shutting_down_ && (fleet_.empty() || !config_.die_with_parent)) {
    exited_ = true;
    effects.emplace_back(Exit{failure_});
  }
}

}  // namespace geopipe::agent
