#include "tests/support/transport_pair.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

constexpr int64_t kConnectLimitNs = 30'000'000'000;
constexpr size_t kStampWords = 2;

void WriteAll(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(fd, text.data(), text.size());
}

// Reads to the end of the pipe.
std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return text;
}

struct Pipe {
  Pipe() {
    std::array<int, 2> fds{-1, -1};
    if (pipe(fds.data()) == 0) {
      read_end.Reset(fds[0]);
      write_end.Reset(fds[1]);
    }
  }
  UniqueFd read_end;
  UniqueFd write_end;
};

UcxTransportOptions TransportOptions(const PairOptions& options, int32_t rank, Allocator& allocator) {
  UcxTransportOptions transport;
  transport.rank = rank;
  transport.job_hash = 1;
  transport.epoch = 1;
  transport.allocator = &allocator;
  if (options.relay && options.is_private) {
    transport.limits.private_network = *ParseIpv4Network(TunSites::kNetwork);
  }
  if (!options.relay) {
    transport.near = {1 - rank};
  }
  for (const ChannelId& id : {kPairForward, kPairBackward}) {
    transport.channels.push_back({.id = id, .slot_bytes = options.slot_bytes, .slots = options.slots});
  }
  if (options.relay && options.tell_link) {
    transport.links.push_back({.peer_rank = 1 - rank,
                               .latency_ns = options.link.latency_ns,
                               .bandwidth_bytes_per_s = options.link.bandwidth_bytes_per_s});
  }
  return transport;
}

// TCP counters of the namespace: segments sent and retransmitted.
std::string TcpCounters() {
  std::ifstream file("/proc/thread-self/net/snmp");
  std::string names;
  std::string values;
  while (std::getline(file, names) && std::getline(file, values)) {
    if (names.starts_with("Tcp:")) {
      break;
    }
  }
  std::istringstream name(names);
  std::istringstream value(values);
  std::string text;
  for (std::string n, v; name >> n && value >> v;) {
    text += n == "OutSegs" || n == "RetransSegs" ? fmt::format("{} {} ", n, v) : "";
  }
  return text;
}

absl::StatusOr<std::string> RunEnd(const PairOptions& options, int32_t rank, const std::string& network, int tell_fd,
                                   int hear_fd, const PairRole& role) {
  if (!network.empty()) {
    GP_RETURN_IF_ERROR(EnterNetwork(network));
  }
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", network.empty() ? "lo" : TunSites::kDevice, 1);
  Allocator allocator(int64_t{4} << 30);
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<UcxTransport> transport,
                      UcxTransport::Create(TransportOptions(options, rank, allocator)));
  WriteAll(tell_fd, transport->address() + "\n");
  std::string peer;
  for (char c = 0; read(hear_fd, &c, 1) == 1 && c != '\n';) {
    peer += c;
  }
  GP_RETURN_IF_ERROR(
      transport->Connect({{.rank = rank, .address = transport->address()}, {.rank = 1 - rank, .address = peer}},
                         "the pair's secret", Clock::Real().NowNs() + kConnectLimitNs));
  PairEnd end{.transport = *transport, .allocator = allocator};
  absl::StatusOr<std::string> result = role(end);
  LogDebug("rank {}: {} frames sent, {} again, {} duplicates, {} bytes; {}", rank, transport->stats().frames_sent,
           transport->stats().frames_resent, transport->stats().duplicate_frames, transport->stats().bytes_sent,
           TcpCounters());
  // Both ends wait here, so that neither leaves before the other has what it waits for.
  WriteAll(tell_fd, "\n");
  char c = 0;
  [[maybe_unused]] const ssize_t got = read(hear_fd, &c, 1);
  return result;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> RunPair(const PairOptions& options, const PairRole& role0,
                                                 const PairRole& role1) {
  std::optional<TunSites> sites;
  if (options.relay) {
    GP_ASSIGN_OR_RETURN(sites, TunSites::Create(options.hosts));
  }
  std::array<Pipe, 2> tell;
  std::array<Pipe, 2> results;
  std::array<pid_t, 2> children{};
  for (int32_t rank = 0; rank < 2; ++rank) {
    const auto self = static_cast<size_t>(rank);
    const std::string network = sites.has_value() ? sites->NetworkPath(self) : "";
    children[self] = fork();
    if (children[self] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      tell[1 - self].write_end.Reset();
      const absl::StatusOr<std::string> result = RunEnd(options, rank, network, tell[self].write_end.get(),
                                                        tell[1 - self].read_end.get(), rank == 0 ? role0 : role1);
      WriteAll(results[self].write_end.get(),
               result.ok() ? *result : fmt::format("rank {}: {}", rank, result.status().ToString()));
      _exit(result.ok() ? 0 : 1);
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    tell[i] = {};
    results[i].write_end.Reset();
  }
  std::unique_ptr<TunRelay> relay;
  if (options.relay) {
    GP_ASSIGN_OR_RETURN(relay, TunRelay::Start(*sites, options.link));
    if (options.while_running) {
      options.while_running(*relay);
    }
  }
  std::vector<std::string> texts;
  absl::Status failure;
  const auto describe = [&](size_t from) {
    const RelayLinkCounters counters = relay->counters(from);
    return fmt::format("{} packets, {} bytes, dropped {} for room, {} by cuts, longest queue {}", counters.packets,
                       counters.bytes, counters.dropped_full, counters.dropped_cut, counters.longest_queue_bytes);
  };
  for (size_t i = 0; i < 2; ++i) {
    texts.push_back(ReadAll(results[i].read_end.get()));
    int status = 0;
    waitpid(children[i], &status, 0);
    if (status != 0) {
      failure.Update(
          absl::InternalError(texts.back().empty() ? fmt::format("rank {} died ({})", i, status) : texts.back()));
    }
  }
  if (relay != nullptr) {
    LogDebug("relay, from 0: {}; from 1: {}; {} ms of processor", describe(0), describe(1), relay->cpu_ns() / 1000000);
  }
  if (!failure.ok()) {
    return failure;
  }
  return texts;
}

absl::StatusOr<Tensor> StampedMessage(Allocator& allocator, int64_t bytes, int32_t value) {
  GP_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Create(allocator, MemoryCategory::kTransport, DType::kInt32, {bytes / 4}));
  const std::span<int32_t> words = tensor.int32();
  for (size_t i = kStampWords; i < words.size(); ++i) {
    words[i] = value * 7919 + static_cast<int32_t>(i);
  }
  return tensor;
}

void Stamp(Tensor& message, int64_t now_ns) { std::memcpy(message.data(), &now_ns, sizeof now_ns); }

int64_t StampOf(const Tensor& message) {
  int64_t now_ns = 0;
  std::memcpy(&now_ns, message.data(), sizeof now_ns);
  return now_ns;
}

bool Holds(const Tensor& message, int32_t value) {
  const std::span<const int32_t> words = message.int32();
  for (size_t i = kStampWords; i < words.size(); ++i) {
    if (words[i] != value * 7919 + static_cast<int32_t>(i)) {
      return false;
    }
  }
  return true;
}

}  // namespace geopipe
