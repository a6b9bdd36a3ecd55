// Links measured as agents do, over UCX on loopback, against what the shaper was told: truth, measurement and error for
// every latency and bandwidth of a table. Ends with 1 when a bar is missed (latency 5 %, bandwidth 10 %).
//
//   probe_bench --latency 1ms --bandwidth 2Gbps --repetitions 10
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "runtime/rehearsal/link/link_shaper.h"
#include "runtime/transport/probe/ucx_link_probe.h"

namespace geopipe {
namespace {

constexpr double kLatencyBar = 0.05;
constexpr double kBandwidthBar = 0.10;
constexpr int64_t kLimitNs = 20'000'000'000;

struct Flags {
  std::vector<std::string> latencies{"1ms", "5ms", "20ms", "100ms"};
  std::vector<std::string> bandwidths{"10Mbps", "100Mbps", "1Gbps", "2Gbps"};
  std::string latency;
  std::string bandwidth;
  int64_t repetitions = 1;
  bool unshaped = false;
};

UcxLinkProbeOptions Options(LinkProbe::Role role, int64_t latency_ns, double bandwidth_bytes_per_s, bool shaped) {
  UcxLinkProbeOptions options{.role = role, .probe = 1};
  if (shaped) {
    const bool initiates = role == LinkProbe::Role::kInitiator;
    const PeerShape shape{.peer_rank = initiates ? UcxLinkProbe::kResponderRank : UcxLinkProbe::kInitiatorRank,
                          .latency_ns = latency_ns,
                          .bandwidth_bytes_per_s = bandwidth_bytes_per_s};
    options.layer = [shape](FrameCarrier& below) -> absl::StatusOr<std::unique_ptr<FrameLayer>> {
      return LinkShaper::Create(below, {.shapes = {shape}});
    };
  }
  return options;
}

// A process of its own, as agents are: tells its address and serves until the initiator has gone.
[[noreturn]] void Respond(const UcxLinkProbeOptions& options, int tell_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto probe = UcxLinkProbe::Open(options);
  const std::string address = probe.ok() ? (*probe)->address() : "";
  [[maybe_unused]] const ssize_t written = write(tell_fd, address.data(), address.size());
  close(tell_fd);
  if (probe.ok()) {
    (*probe)->Run("", "secret", Clock::Real().NowNs() + kLimitNs).status().IgnoreError();
  }
  _exit(probe.ok() ? 0 : 1);
}

absl::StatusOr<LinkProbeResult> ProbeOnce(int64_t latency_ns, double bandwidth_bytes_per_s, bool shaped) {
  std::array<int, 2> fds{};
  if (pipe(fds.data()) != 0) {
    return absl::InternalError("no pipe");
  }
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    Respond(Options(LinkProbe::Role::kResponder, latency_ns, bandwidth_bytes_per_s, shaped), fds[1]);
  }
  close(fds[1]);
  std::string address;
  std::array<char, 256> buffer{};
  for (ssize_t got = 0; (got = read(fds[0], buffer.data(), buffer.size())) > 0;) {
    address.append(buffer.data(), static_cast<size_t>(got));
  }
  close(fds[0]);
  absl::StatusOr<LinkProbeResult> result = absl::UnavailableError("the responder did not start");
  if (!address.empty()) {
    const auto probe =
        UcxLinkProbe::Open(Options(LinkProbe::Role::kInitiator, latency_ns, bandwidth_bytes_per_s, shaped));
    result = probe.ok() ? (*probe)->Run(address, "secret", Clock::Real().NowNs() + kLimitNs) : probe.status();
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return result;
}

std::string Error(double measured, double truth, double bar, bool& missed) {
  const double error = truth > 0 ? measured / truth - 1 : 0;
  missed = missed || std::abs(error) > bar;
  return fmt::format("{:+.1f}%{}", error * 100, std::abs(error) > bar ? "!" : " ");
}

absl::StatusOr<bool> Cell(int64_t latency_ns, double bandwidth, const Flags& flags) {
  bool missed = false;
  for (int64_t i = 0; i < flags.repetitions; ++i) {
    const int64_t begin_ns = Clock::Real().NowNs();
    GP_ASSIGN_OR_RETURN(const LinkProbeResult result, ProbeOnce(latency_ns, bandwidth, !flags.unshaped));
    const double seconds = static_cast<double>(Clock::Real().NowNs() - begin_ns) * 1e-9;
    const auto truth = static_cast<double>(latency_ns);
    bool ignored = false;
    const double median = flags.unshaped ? 0 : truth;
    fmt::print(
        "{:>6} {:>8} | {:>8.4f} {:>8} {:>8.4f} {:>8} {:>7.4f} | {:>8.2f} {:>8} {:>7.2f} {:>3} | {:>8.2f} {:>8} "
        "{:>7.2f} {:>3} | {:>5.2f}\n",
        FormatDuration(latency_ns), FormatBandwidth(bandwidth), static_cast<double>(result.latency_ns) * 1e-6,
        Error(static_cast<double>(result.latency_ns), median, kLatencyBar, missed),
        static_cast<double>(result.latency_median_ns) * 1e-6,
        Error(static_cast<double>(result.latency_median_ns), median, kLatencyBar, ignored),
        static_cast<double>(result.latency_spread_ns) * 1e-6, result.outbound.median * 8e-6,
        Error(result.outbound.median, flags.unshaped ? 0 : bandwidth, kBandwidthBar, missed),
        result.outbound.spread * 8e-6, result.outbound.samples, result.inbound.median * 8e-6,
        Error(result.inbound.median, flags.unshaped ? 0 : bandwidth, kBandwidthBar, missed),
        result.inbound.spread * 8e-6, result.inbound.samples, seconds);
    std::fflush(stdout);
  }
  return missed;
}

absl::StatusOr<bool> Run(const Flags& flags) {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  fmt::print(
      "{:>6} {:>8} | {:>8} {:>8} {:>8} {:>8} {:>7} | {:>8} {:>8} {:>7} {:>3} | {:>8} {:>8} {:>7} {:>3} | {:>5}\n",
      "truth", "truth", "ms", "error", "median", "error", "+-", "out Mbps", "error", "+-", "n", "in Mbps", "error",
      "+-", "n", "s");
  bool missed = false;
  for (const std::string& latency : flags.latency.empty() ? flags.latencies : std::vector{flags.latency}) {
    for (const std::string& bandwidth : flags.bandwidth.empty() ? flags.bandwidths : std::vector{flags.bandwidth}) {
      GP_ASSIGN_OR_RETURN(const int64_t latency_ns, ParseDuration(latency));
      GP_ASSIGN_OR_RETURN(const double bandwidth_bytes_per_s, ParseBandwidth(bandwidth));
      GP_ASSIGN_OR_RETURN(const bool cell_missed, Cell(latency_ns, bandwidth_bytes_per_s, flags));
      missed = missed || cell_missed;
    }
  }
  return missed;
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("probe_bench", "Measures shaped links as agents do and compares with the truth.");
  set.Add("latency", &flags.latency, "DURATION", "One way, instead of 1, 5, 20 and 100 ms.");
  set.Add("bandwidth", &flags.bandwidth, "BANDWIDTH", "Instead of 10 and 100 Mbps, 1 and 2 Gbps.");
  set.Add("repetitions", &flags.repetitions, "N", "Probes of each link.");
  set.Add("unshaped", &flags.unshaped, "What UCX itself takes over loopback.");
  absl::Status status = set.Parse(argc - 1, argv + 1);
  if (status.ok() && set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  InitLogging({.program = "probe_bench", .level = LogLevel::kError});
  absl::StatusOr<bool> missed = false;
  if (status.ok()) {
    missed = Run(flags);
    status = missed.status();
  }
  if (!status.ok()) {
    fmt::print(stderr, "probe_bench: {}\n", std::string(status.message()));
    return 2;
  }
  if (*missed) {
    fmt::print(stderr, "probe_bench: a bar was missed (marked !)\n");
  }
  return *missed ? 1 : 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
