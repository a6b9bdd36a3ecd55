#include "agent/link_prober.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/rehearsal/host/quick_wakeup.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "runtime/transport/probe/ucx_link_probe.h"

namespace geopipe::agent {
namespace {

constexpr size_t kSecretBytes = 32;

UcxLinkProbeOptions OptionsOf(const AgentConfig& config, const StartProbe& start) {
  const v1::ProbeLink& order = start.order;
  UcxLinkProbeOptions options;
  options.role = order.address().empty() ? LinkProbe::Role::kResponder : LinkProbe::Role::kInitiator;
  options.probe = order.probe();
  options.latency_ns = order.latency_ns();
  options.bandwidth_bytes_per_s = order.bandwidth_bytes_per_s();
  options.allow_unprotected = config.ucx_allow_unprotected;
  options.measurement.budget_ns = order.budget_ns();
  options.on_thread = [] { PreferQuickWakeup(); };
  if (order.shaped()) {
    const bool initiates = options.role == LinkProbe::Role::kInitiator;
    const PeerShape shape{.peer_rank = initiates ? UcxLinkProbe::kResponderRank : UcxLinkProbe::kInitiatorRank,
                          .latency_ns = order.latency_ns(),
                          .bandwidth_bytes_per_s = order.bandwidth_bytes_per_s(),
                          .pacer_path = start.pacer_path};
    options.layer = [shape](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
      return LinkShaper::Create(below, {.shapes = {shape}});
    };
  }
  return options;
}

v1::LinkMeasurement MeasurementOf(const LinkProbeResult& result, const MedianSpread& bandwidth) {
  v1::LinkMeasurement measurement;
  measurement.set_latency_ns(result.latency_ns);
  measurement.set_latency_median_ns(result.latency_median_ns);
  measurement.set_latency_spread_ns(result.latency_spread_ns);
  measurement.set_latency_samples(result.round_trips);
  measurement.set_bandwidth_bytes_per_s(bandwidth.median);
  measurement.set_bandwidth_spread_bytes_per_s(bandwidth.spread);
  measurement.set_bandwidth_samples(bandwidth.samples);
  return measurement;
}

}  // namespace

// A thread of its own, because opening UCX and waiting take time.
class LinkProber::Probe {
 public:
  Probe(const AgentConfig& config, PostEvent post, StartProbe start)
      : config_(config), post_(std::move(post)), start_(std::move(start)), thread_([this] { Run(); }) {}
  ~Probe() {
    Stop();
    thread_.join();
  }

  uint64_t id() const { return start_.order.probe(); }
  bool done() const { return done_; }

  void Stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    if (running_ != nullptr) {
      running_->Cancel(absl::CancelledError("the probe was called off"));
    }
  }

 private:
  void Run() {
    if (const absl::Status status = Measure(); !status.ok()) {
      v1::ProbeReport report;
      report.mutable_failed()->set_code(static_cast<int32_t>(status.code()));
      report.mutable_failed()->set_message(std::string(status.message()));
      Post(std::move(report));
    }
    done_ = true;
  }

  absl::Status Measure() {
    const v1::ProbeLink& order = start_.order;
    const int64_t deadline_ns = Clock::Real().NowNs() + order.limit_ns();
    GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxLinkProbe> probe, UcxLinkProbe::Open(OptionsOf(config_, start_)));
    if (!SetRunning(probe.get())) {
      return absl::CancelledError("the probe was called off");
    }
    const absl::StatusOr<LinkProbeResult> result = RunEnd(*probe, deadline_ns);
    SetRunning(nullptr);
    GP_RETURN_IF_ERROR(result.status());
    if (!order.address().empty()) {
      v1::ProbeReport report;
      *report.mutable_measured()->mutable_outbound() = MeasurementOf(*result, result->outbound);
      *report.mutable_measured()->mutable_inbound() = MeasurementOf(*result, result->inbound);
      Post(std::move(report));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LinkProbeResult> RunEnd(UcxLinkProbe& probe, int64_t deadline_ns) {
    const v1::ProbeLink& order = start_.order;
    if (!order.address().empty()) {
      return probe.Run(order.address(), order.secret(), deadline_ns);
    }
    const std::string secret = RandomBytes(kSecretBytes);
    v1::ProbeReport report;
    report.mutable_opened()->set_address(probe.address());
    report.mutable_opened()->set_secret(secret);
    Post(std::move(report));
    return probe.Run("", secret, deadline_ns);
  }

  // False when the probe has been stopped meanwhile.
  bool SetRunning(UcxLinkProbe* probe) {
    std::lock_guard lock(mutex_);
    running_ = stopped_ ? nullptr : probe;
    return !stopped_;
  }

  void Post(v1::ProbeReport report) {
    report.set_probe(id());
    post_(ProbeNews{std::move(report)});
  }

  const AgentConfig& config_;
  const PostEvent post_;
  const StartProbe start_;
  std::mutex mutex_;
  bool stopped_ = false;             // guarded by the mutex
  UcxLinkProbe* running_ = nullptr;  // as well
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

LinkProber::LinkProber(const AgentConfig& config, PostEvent post) : config_(config), post_(std::move(post)) {}

LinkProber::~LinkProber() {
  for (const std::unique_ptr<Probe>& probe : probes_) {
    probe->Stop();
  }
}

void LinkProber::Carry(StartProbe order) {
  // One that is not over may be waiting for room in the core's inbox, so it is not waited for here.
  probes_.remove_if([](const std::unique_ptr<Probe>& probe) { return probe->done(); });
  probes_.push_back(std::make_unique<Probe>(config_, post_, std::move(order)));
}

void LinkProber::Carry(const StopProbe& order) {
  for (const std::unique_ptr<Probe>& probe : probes_) {
    if (probe->id() == order.probe) {
      probe->Stop();
    }
  }
}

}  // namespace geopipe::agent
