#include "runtime/main/probe_process.h"

#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>

#include "geopipe/v1/agent_service.pb.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/rehearsal/host/quick_wakeup.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "runtime/transport/probe/ucx_link_probe.h"

namespace geopipe {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kMaxOrderBytes = 4096;

UcxLinkProbeOptions OptionsOf(const v1::ProbeLink& order, const ProbeProcessOptions& process) {
  UcxLinkProbeOptions options;
  options.role = order.address().empty() ? LinkProbe::Role::kResponder : LinkProbe::Role::kInitiator;
  options.probe = order.probe();
  options.latency_ns = order.latency_ns();
  options.bandwidth_bytes_per_s = order.bandwidth_bytes_per_s();
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

bool SendReport(int fd, const v1::ProbeReport& report) {
  const std::string bytes = report.SerializeAsString();
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

absl::Status Measure(int fd, const v1::ProbeLink& order, const ProbeProcessOptions& process) {
  const int64_t deadline_ns = Clock::Real().NowNs() + order.limit_ns();
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxLinkProbe> probe, UcxLinkProbe::Open(OptionsOf(order, process)));
  v1::ProbeReport report;
  if (order.address().empty()) {
    const std::string secret = RandomBytes(kSecretBytes);
    report.mutable_opened()->set_address(probe->address());
    report.mutable_opened()->set_secret(secret);
    if (!SendReport(fd, report)) {
      return absl::CancelledError("the agent has gone");
    }
    return probe->Run("", secret, deadline_ns).status();
  }
  GP_ASSIGN_OR_RETURN(const LinkProbeResult result, probe->Run(order.address(), order.secret(), deadline_ns));
  *report.mutable_measured()->mutable_outbound() = MeasurementOf(result, result.outbound);
  *report.mutable_measured()->mutable_inbound() = MeasurementOf(result, result.inbound);
  SendReport(fd, report);
  return absl::OkStatus();
}

}  // namespace

int ServeProbe(int fd, const ProbeProcessOptions& options) {
  std::array<char, kMaxOrderBytes> packet{};
  const ssize_t bytes = recv(fd, packet.data(), packet.size(), 0);
  v1::ProbeLink order;
  if (bytes <= 0 || !order.ParseFromArray(packet.data(), static_cast<int>(bytes))) {
    LogError("descriptor {} brings no order for a probe; the agent starts probes by itself", fd);
    return 2;
  }
  if (const absl::Status status = Measure(fd, order, options); !status.ok()) {
    v1::ProbeReport report;
    report.mutable_failed()->set_code(static_cast<int32_t>(status.code()));
    report.mutable_failed()->set_message(std::string(status.message()));
    SendReport(fd, report);
  }
  return 0;
}

}  // namespace geopipe
