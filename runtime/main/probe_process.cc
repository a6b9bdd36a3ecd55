#include "runtime/main/probe_process.h"

#include <memory>
#include <utility>

#include "geopipe/v1/agent_service.pb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/packet_socket.h"
#include "runtime/rehearsal/host/quick_wakeup.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "runtime/transport/probe/ucx_link_probe.h"

namespace geopipe {
namespace {

constexpr size_t kSecretBytes = 32;

UcxLinkProbeOptions OptionsOf(const v1::ProbeLink& order, const ProbeProcessOptions& process) {
  UcxLinkProbeOptions options;
  options.role = order.address().empty() ? LinkProbe::Role::kResponder : LinkProbe::Role::kInitiator;
  options.probe = order.probe();
  options.latency_ns = order.latency_ns();
  options.bandwidth_bytes_per_s = order.bandwidth_bytes_per_s();
  options.near = process.near;
  options.limits = process.limits;
  options.measurement.budget_ns = order.budget_ns();
  options.on_thread = [] { PreferQuickWakeup(); };
  if (order.shaped()) {
    const bool initiates = options.role == LinkProbe::Role::kInitiator;
    const PeerShape shape{.peer_rank = initiates ? UcxLinkProbe::kResponderRank : UcxLinkProbe::kInitiatorRank,
                          .latency_ns = order.latency_ns(),
                          .bandwidth_bytes_per_s = order.bandwidth_bytes_per_s(),
                          .pacer_path = process.pacer_path};
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

absl::Status SendReport(int fd, const v1::ProbeReport& report) { return SendPacket(fd, report.SerializeAsString()); }

absl::Status Measure(int fd, const v1::ProbeLink& order, const ProbeProcessOptions& process) {
  const int64_t deadline_ns = Clock::Real().NowNs() + order.limit_ns();
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxLinkProbe> probe, UcxLinkProbe::Open(OptionsOf(order, process)));
  v1::ProbeReport report;
  if (order.address().empty()) {
    const std::string secret = RandomBytes(kSecretBytes);
    report.mutable_opened()->set_address(probe->address());
    report.mutable_opened()->set_secret(secret);
    GP_RETURN_IF_ERROR(SendReport(fd, report));
    return probe->Run("", secret, deadline_ns).status();
  }
  GP_ASSIGN_OR_RETURN(const LinkProbeResult result, probe->Run(order.address(), order.secret(), deadline_ns));
  *report.mutable_measured()->mutable_outbound() = MeasurementOf(result, result.outbound);
  *report.mutable_measured()->mutable_inbound() = MeasurementOf(result, result.inbound);
  return SendReport(fd, report);
}

}  // namespace

int ServeProbe(int fd, const ProbeProcessOptions& options) {
  v1::ProbeLink order;
  if (const std::string packet = ReceivePacket(fd); packet.empty() || !order.ParseFromString(packet)) {
    LogError("descriptor {} brings no order for a probe; the agent starts probes by itself", fd);
    return 2;
  }
  LogContext context;
  context.worker = "probe of the link to " + order.to_site();
  SetProcessLogContext(context);
  if (const absl::Status status = Measure(fd, order, options); !status.ok()) {
    v1::ProbeReport report;
    report.mutable_failed()->set_code(static_cast<int32_t>(status.code()));
    report.mutable_failed()->set_message(std::string(status.message()));
    if (const absl::Status sent = SendReport(fd, report); !sent.ok()) {
      LogInfo("the agent does not hear that {}: {}", std::string(status.message()), std::string(sent.message()));
    }
  }
  return 0;
}

}  // namespace geopipe
