// Two sites on this machine with a real, slow link between them, for tests and by hand (root, /dev/net/tun):
//
//   tun_relay --latency 30ms --bandwidth 1Gbps
//
// prints one line when it is ready, with the sites' addresses and namespaces:
//
//   ready a=10.213.0.1 b=10.213.0.2 device=gptun0 network_a=/proc/4711/fd/3 network_b=/proc/4711/fd/5
//
// Programs run in a site with `tun_relay enter NETWORK PROGRAM [ARGUMENT...]`. The relay takes one command a line on
// standard input (`cut 5s`, `latency 20ms`, `bandwidth 500Mbps`, `stats`) and ends, and the sites with it, when its
// input ends or its parent does.
//
// A whole federation over it: coordinator and agents run outside; each agent's `worker_binary` is a script that does
// `exec tun_relay enter NETWORK geopipe-worker "$@"`, with `ucx: {net_devices: gptun0, allow_unprotected: true,
// private_network: 10.213.0.0/24}`.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/flags.h"
#include "runtime/base/process.h"
#include "tests/support/tun_relay.h"
#include "tests/support/tun_sites.h"

namespace geopipe {
namespace {

absl::Status Enter(char** arguments) {
  GP_RETURN_IF_ERROR(EnterNetwork(arguments[0]));
  execvp(arguments[1], arguments + 1);
  return absl::NotFoundError(fmt::format("{} cannot be executed", arguments[1]));
}

void PrintStats(const TunRelay& relay) {
  for (size_t from = 0; from < 2; ++from) {
    const RelayLinkCounters counters = relay.counters(from);
    fmt::print("{} packets={} bytes={} dropped_full={} dropped_cut={} longest_queue_bytes={}\n",
               from == 0 ? "a-to-b" : "b-to-a", counters.packets, counters.bytes, counters.dropped_full,
               counters.dropped_cut, counters.longest_queue_bytes);
  }
}

absl::Status Obey(const std::string& line, TunRelay& relay, RelayLinkOptions& options) {
  const size_t space = line.find(' ');
  const std::string verb = line.substr(0, space);
  const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
  if (verb == "stats") {
    PrintStats(relay);
  } else if (verb == "cut") {
    GP_ASSIGN_OR_RETURN(const int64_t duration_ns, ParseDuration(value));
    relay.Cut(duration_ns);
  } else if (verb == "latency") {
    GP_ASSIGN_OR_RETURN(options.latency_ns, ParseDuration(value));
    relay.SetOptions(options);
  } else if (verb == "bandwidth") {
    GP_ASSIGN_OR_RETURN(options.bandwidth_bytes_per_s, ParseBandwidth(value));
    relay.SetOptions(options);
  } else {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is no command; there are cut, latency, bandwidth, stats", verb));
  }
  return absl::OkStatus();
}

absl::Status Relay(const RelayLinkOptions& given) {
  GP_RETURN_IF_ERROR(DieWithParent(SIGKILL));
  RelayLinkOptions options = given;
  GP_ASSIGN_OR_RETURN(const TunSites sites, TunSites::Create());
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<TunRelay> relay, TunRelay::Start(sites, options));
  fmt::print("ready a={} b={} device={} network_a={} network_b={}\n", sites.site(0).address, sites.site(1).address,
             TunSites::kDevice, sites.NetworkPath(0), sites.NetworkPath(1));
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    if (const absl::Status status = Obey(line, *relay, options); !status.ok()) {
      fmt::print("error {}\n", std::string(status.message()));
    } else {
      fmt::print("ok {}\n", line);
    }
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  absl::Status status;
  if (argc >= 4 && std::string(argv[1]) == "enter") {
    status = Enter(argv + 2);
  } else {
    RelayLinkOptions options;
    FlagSet flags("tun_relay", "Two network namespaces with a slow link between them.");
    flags.AddDuration("latency", &options.latency_ns, "One way.");
    flags.AddParsed("bandwidth", "BANDWIDTH", "unlimited", "Per direction.", [&](std::string_view text) {
      GP_ASSIGN_OR_RETURN(options.bandwidth_bytes_per_s, ParseBandwidth(text));
      return absl::OkStatus();
    });
    flags.AddParsed("queue", "BYTES", "from bandwidth and latency", "What may wait for the wire, per direction.",
                    [&](std::string_view text) {
                      GP_ASSIGN_OR_RETURN(options.queue_bytes, ParseBytes(text));
                      return absl::OkStatus();
                    });
    status = flags.Parse(argc - 1, argv + 1);
    if (status.ok() && flags.help_requested()) {
      fmt::print("{}", flags.Help());
      return 0;
    }
    if (status.ok()) {
      status = Relay(options);
    }
  }
  if (!status.ok()) {
    fmt::print(stderr, "tun_relay: {}\n", std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
