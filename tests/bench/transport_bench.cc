// Measures what the transport costs on real packets. Three parts, all or those named on the command line:
//
//   unshaped   bandwidth over loopback for messages of 1 to 16 MiB, beside ucx_perftest's (Debian's ucx-utils) of the
//              same run: polling as it does by default, and asleep between events (-E sleep) as workers are
//   crossing   time of one crossing through the tun relay (root; see tests/support/tun_relay_main.cc) for 64 KiB to
//              16 MiB, beside latency + bytes / bandwidth
//   cut        what an outage of 5 s in the middle of the work costs beyond its own length
//
//   transport_bench crossing --latency 30ms --bandwidth 1Gbps
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"
#include "runtime/base/process.h"
#include "tests/support/transport_pair.h"

namespace geopipe {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr double kNsPerMs = 1e6;
constexpr int64_t kWarmUpRounds = 5;  // windows grow

struct Flags {
  std::vector<std::string> parts;
  int64_t latency_ns = 0;  // 0: the crossing part's own table
  double bandwidth_bytes_per_s = 0;
  int64_t repetitions = 9;
  int64_t turns = 7;
  int64_t outage_ns = 5'000'000'000;
  bool tell_link = true;
  bool verbose = false;
  TunHostSettings hosts;
};

int64_t Soon() { return Clock::Real().NowNs() + int64_t{120} * 1'000'000'000; }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// --- Crossing ---------------------------------------------------------------------------------------------------

// Every message alone: sent when the one before was acknowledged, and `pause_ns` later.
absl::StatusOr<std::string> SendEach(PairEnd& end, const std::vector<int64_t>& sizes, int64_t repetitions,
                                     int64_t pause_ns) {
  int64_t iteration = 0;
  // All connections of the path are up by then.
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 2'000'000'000);
  for (const int64_t bytes : sizes) {
    for (int64_t i = 0; i < repetitions; ++i, ++iteration) {
      GP_ASSIGN_OR_RETURN(Tensor message, StampedMessage(end.allocator, bytes, static_cast<int32_t>(iteration)));
      Clock::Real().SleepUntilNs(Clock::Real().NowNs() + pause_ns);
      Stamp(message, Clock::Real().NowNs());
      const MessageTag tag{.iteration = iteration};
      GP_RETURN_IF_ERROR(end.transport.Send(kPairForward, tag, {.value = std::move(message)}));
      GP_RETURN_IF_ERROR(end.transport.WaitAcknowledged(kPairForward, tag, Soon()).status());
    }
  }
  return "";
}

// Times of the messages, in ms, one line per size: median, least, greatest.
absl::StatusOr<std::string> TimeEach(PairEnd& end, const std::vector<int64_t>& sizes, int64_t repetitions) {
  std::string lines;
  int64_t iteration = 0;
  for ([[maybe_unused]] const int64_t bytes : sizes) {
    std::vector<double> times;
    for (int64_t i = 0; i < repetitions; ++i, ++iteration) {
      GP_ASSIGN_OR_RETURN(const Timed<Tensor> message,
                          end.transport.Receive(kPairForward, {.iteration = iteration}, Soon()));
      times.push_back(static_cast<double>(Clock::Real().NowNs() - StampOf(message.value)) / kNsPerMs);
      if (!Holds(message.value, static_cast<int32_t>(iteration))) {
        return absl::InternalError(fmt::format("message {} is not what was sent", iteration));
      }
    }
    lines += fmt::format("{} {} {} {}\n", Median(times), *std::min_element(times.begin(), times.end()),
                         *std::max_element(times.begin(), times.end()), times.front());
  }
  return lines;
}

absl::Status Crossing(const Flags& flags, int64_t latency_ns, double bandwidth_bytes_per_s, int64_t pause_ns) {
  const std::vector<int64_t> sizes = {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB, 16 * kMiB};
  PairOptions options;
  options.slot_bytes = 16 * kMiB;
  options.relay = true;
  options.link = {.latency_ns = latency_ns, .bandwidth_bytes_per_s = bandwidth_bytes_per_s};
  options.tell_link = flags.tell_link;
  options.hosts = flags.hosts;
  GP_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                      RunPair(
                          options, [&](PairEnd& end) { return SendEach(end, sizes, flags.repetitions, pause_ns); },
                          [&](PairEnd& end) { return TimeEach(end, sizes, flags.repetitions); }));
  fmt::print("\ncrossing, {} one way, {}, {} between messages (ms, {} of each)\n", FormatDuration(latency_ns),
             FormatBandwidth(bandwidth_bytes_per_s), FormatDuration(pause_ns), flags.repetitions);
  fmt::print("{:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8}\n", "bytes", "ideal", "median", "least", "greatest",
             "first", "median");
  std::istringstream lines(results[1]);
  for (const int64_t bytes : sizes) {
    double median = 0;
    double least = 0;
    double greatest = 0;
    double first = 0;
    lines >> median >> least >> greatest >> first;
    const double ideal =
        static_cast<double>(latency_ns) / kNsPerMs + static_cast<double>(bytes) / bandwidth_bytes_per_s * 1e3;
    fmt::print("{:>8} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>+7.1f}%\n", FormatBytes(bytes), ideal,
               median, least, greatest, first, (median / ideal - 1) * 100);
  }
  return absl::OkStatus();
}

// --- Cut --------------------------------------------------------------------------------------------------------

// Rounds of a message there and one back (`both`), or of one that only comes back, each paced like a computation.
absl::StatusOr<std::string> Rounds0(PairEnd& end, int64_t rounds, int64_t bytes, bool both) {
  std::vector<double> times;
  for (int32_t i = 0; i < rounds; ++i) {
    const int64_t begin_ns = Clock::Real().NowNs();
    if (both) {
      GP_ASSIGN_OR_RETURN(Tensor message, StampedMessage(end.allocator, bytes, i));
      GP_RETURN_IF_ERROR(end.transport.Send(kPairForward, {.iteration = i}, {.value = std::move(message)}));
    }
    GP_ASSIGN_OR_RETURN(const Timed<Tensor> answer, end.transport.Receive(kPairBackward, {.iteration = i}, Soon()));
    if (!Holds(answer.value, -i)) {
      return absl::InternalError(fmt::format("answer {} is not what was sent", i));
    }
    times.push_back(static_cast<double>(Clock::Real().NowNs() - begin_ns) / kNsPerMs);
  }
  LogDebug("rounds, ms: {:.0f}", fmt::join(times, " "));
  times.erase(times.begin(), times.begin() + kWarmUpRounds);
  const double median = Median(times);
  const double longest = *std::max_element(times.begin(), times.end()) - median;
  return fmt::format("{} {} {} {}",
                     std::accumulate(times.begin(), times.end(), 0.0) - median * static_cast<double>(times.size()),
                     longest, median, end.transport.stats().reconnects);
}

absl::StatusOr<std::string> Rounds1(PairEnd& end, int64_t rounds, int64_t bytes, bool both) {
  for (int32_t i = 0; i < rounds; ++i) {
    if (both) {
      GP_ASSIGN_OR_RETURN(const Timed<Tensor> message, end.transport.Receive(kPairForward, {.iteration = i}, Soon()));
      if (!Holds(message.value, i)) {
        return absl::InternalError(fmt::format("message {} is not what was sent", i));
      }
    } else {
      Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 50'000'000);
    }
    GP_ASSIGN_OR_RETURN(Tensor answer, StampedMessage(end.allocator, bytes, -i));
    GP_RETURN_IF_ERROR(end.transport.Send(kPairBackward, {.iteration = i}, {.value = std::move(answer)}));
    if (!both) {
      GP_RETURN_IF_ERROR(end.transport.WaitAcknowledged(kPairBackward, {.iteration = i}, Soon()).status());
    }
  }
  return "";
}

absl::Status Cut(const Flags& flags, bool both) {
  constexpr int64_t kRounds = 40;
  constexpr int64_t kBytes = kMiB;
  PairOptions options;
  options.slot_bytes = kBytes;
  options.relay = true;
  options.link = {.latency_ns = flags.latency_ns > 0 ? flags.latency_ns : 30'000'000,
                  .bandwidth_bytes_per_s = flags.bandwidth_bytes_per_s > 0 ? flags.bandwidth_bytes_per_s : 125e6};
  options.tell_link = flags.tell_link;
  options.hosts = flags.hosts;
  options.while_running = [&](TunRelay& relay) {
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 3'000'000'000);
    LogInfo("cut");
    relay.Cut(flags.outage_ns);
    Clock::Real().SleepUntilNs(Clock::Real().NowNs() + flags.outage_ns);
    LogInfo("the cut ends");
  };
  GP_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                      RunPair(
                          options, [&](PairEnd& end) { return Rounds0(end, kRounds, kBytes, both); },
                          [&](PairEnd& end) { return Rounds1(end, kRounds, kBytes, both); }));
  double lost_ms = 0;
  double longest_ms = 0;
  double median_ms = 0;
  int64_t reconnects = 0;
  std::istringstream(results[0]) >> lost_ms >> longest_ms >> median_ms >> reconnects;
  fmt::print(
      "cut of {} ({}): lost {:+.0f} ms (in the longest round {:+.0f} ms) beyond it, {} reconnects, a round takes "
      "{:.1f} ms\n",
      FormatDuration(flags.outage_ns), both ? "messages both ways" : "the dialer only listens",
      lost_ms - static_cast<double>(flags.outage_ns) / kNsPerMs,
      longest_ms - static_cast<double>(flags.outage_ns) / kNsPerMs, reconnects, median_ms);
  return absl::OkStatus();
}

// --- Unshaped ---------------------------------------------------------------------------------------------------

// One arrives while the other is taken, and of small ones as many as a stage that runs ahead has on their way: threads
// that sleep between messages are late now and then.
int32_t SlotsFor(int64_t bytes) { return static_cast<int32_t>(std::max<int64_t>(2, 8 * kMiB / bytes)); }

// The memory that is sent was never written, as perftest's: both read the kernel's page of zeros.
absl::StatusOr<std::string> Stream0(PairEnd& end, int64_t bytes, int64_t count) {
  const int64_t window = 2 * SlotsFor(bytes);  // handed over, of which as many travel as there are slots
  const int64_t begin_ns = Clock::Real().NowNs();
  for (int64_t i = 0; i < count; ++i) {
    if (i >= window && i % (window / 2) == 0) {
      GP_RETURN_IF_ERROR(end.transport.WaitAcknowledged(kPairForward, {.iteration = i - window}, Soon()).status());
    }
    GP_ASSIGN_OR_RETURN(Tensor message,
                        Tensor::Create(end.allocator, MemoryCategory::kTransport, DType::kInt32, {bytes / 4}));
    GP_RETURN_IF_ERROR(end.transport.Send(kPairForward, {.iteration = i}, {.value = std::move(message)}));
  }
  for (int64_t i = std::max<int64_t>(0, count - window); i < count; ++i) {
    GP_RETURN_IF_ERROR(end.transport.WaitAcknowledged(kPairForward, {.iteration = i}, Soon()).status());
  }
  const double seconds = static_cast<double>(Clock::Real().NowNs() - begin_ns) * 1e-9;
  return fmt::format("{}", static_cast<double>(bytes * count) / seconds);
}

absl::StatusOr<std::string> Stream1(PairEnd& end, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    GP_ASSIGN_OR_RETURN(const Timed<Tensor> message, end.transport.Receive(kPairForward, {.iteration = i}, Soon()));
  }
  return "";
}

// ucx_perftest's bandwidth of active messages, bytes per second; 0 if it is not installed. `mode`: poll or sleep.
double PerftestBandwidth(int64_t bytes, int64_t count, const char* mode) {
  const char* program = "/usr/bin/ucx_perftest";
  const auto folder = TempFolder::Create("geopipe-bench");
  if (access(program, X_OK) != 0 || !folder.ok()) {
    return 0;
  }
  const std::string port = std::to_string(14'000 + Clock::Real().NowNs() / 1000 % 10'000);
  ProcessSpec server;
  server.program = program;
  server.args = {"-p", port};
  server.environment = {{"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "lo"}, {"UCX_LOG_LEVEL", "error"}};
  server.stdout_path = folder->path() / "server";
  server.stderr_path = server.stdout_path;
  ProcessSpec client = server;
  client.args = {"127.0.0.1",           "-p", port, "-t", "ucp_am_bw", "-s", std::to_string(bytes), "-n",
                 std::to_string(count), "-w", "3",  "-f", "-E",        mode};
  client.stdout_path = folder->path() / "client";
  client.stderr_path = folder->path() / "client-errors";
  auto listening = Process::Start(server);
  Clock::Real().SleepUntilNs(Clock::Real().NowNs() + 1'000'000'000);
  auto measuring = Process::Start(client);
  if (!listening.ok() || !measuring.ok() || !measuring->Wait(int64_t{60} * 1'000'000'000).has_value()) {
    return 0;
  }
  const auto line = ReadFileTail(client.stdout_path, 200);
  if (!line.ok()) {
    return 0;
  }
  // Final: iterations, latency percentile, average, overall, MB/s average, overall, ...
  std::istringstream words(line->substr(line->find("Final:") == std::string::npos ? 0 : line->find("Final:")));
  std::vector<double> numbers;
  for (std::string word; words >> word;) {
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    if (end != word.c_str() && *end == '\0') {
      numbers.push_back(number);
    }
  }
  return numbers.size() > 5 ? numbers[5] * static_cast<double>(kMiB) : 0;
}

absl::StatusOr<double> OurBandwidth(int64_t bytes, int64_t count) {
  PairOptions options;
  options.slot_bytes = bytes;
  options.slots = SlotsFor(bytes);
  GP_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                      RunPair(
                          options, [&](PairEnd& end) { return Stream0(end, bytes, count); },
                          [&](PairEnd& end) { return Stream1(end, count); }));
  return std::strtod(results[0].c_str(), nullptr);
}

// Measures the variants in turns, so that all meet the same neighbours; a ratio is the median of each turn's.
absl::Status Unshaped(int64_t turns) {
  fmt::print("unshaped, over loopback, medians of {} turns\n{:>8} {:>12} {:>14} {:>6} {:>14} {:>16} {:>6}\n", turns,
             "bytes", "GeoPipe MB/s", "perftest MB/s", "ratio", "least greatest", "perftest asleep", "ratio");
  for (const int64_t bytes : {kMiB, 4 * kMiB, 16 * kMiB}) {
    const int64_t count = int64_t{1024} * kMiB / bytes;
    std::vector<double> ours;
    std::vector<double> polling;
    std::vector<double> asleep;
    std::vector<double> ratios;
    std::vector<double> ratios_asleep;
    for (int64_t turn = 0; turn < turns; ++turn) {
      GP_ASSIGN_OR_RETURN(const double bandwidth, OurBandwidth(bytes, count));
      ours.push_back(bandwidth);
      polling.push_back(PerftestBandwidth(bytes, count, "poll"));
      asleep.push_back(PerftestBandwidth(bytes, count, "sleep"));
      if (polling.back() <= 0 || asleep.back() <= 0) {
        return absl::UnavailableError("ucx_perftest does not run here; Debian has it in ucx-utils");
      }
      ratios.push_back(ours.back() / polling.back());
      ratios_asleep.push_back(ours.back() / asleep.back());
    }
    fmt::print("{:>8} {:>12.0f} {:>14.0f} {:>6.2f} {:>6.2f} {:>7.2f} {:>16.0f} {:>6.2f}\n", FormatBytes(bytes),
               Median(ours) * 1e-6, Median(polling) * 1e-6, Median(ratios),
               *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()),
               Median(asleep) * 1e-6, Median(ratios_asleep));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

// --- Main -------------------------------------------------------------------------------------------------------

absl::Status Run(const Flags& flags) {
  const auto wanted = [&](const char* part) {
    return flags.parts.empty() || std::find(flags.parts.begin(), flags.parts.end(), part) != flags.parts.end();
  };
  if (wanted("unshaped")) {
    GP_RETURN_IF_ERROR(Unshaped(flags.turns));
  }
  if (wanted("crossing")) {
    const int64_t latency_ns = flags.latency_ns > 0 ? flags.latency_ns : 30'000'000;
    std::vector<double> bandwidths = {25e6, 125e6};
    if (flags.bandwidth_bytes_per_s > 0) {
      bandwidths = {flags.bandwidth_bytes_per_s};
    }
    for (const double bandwidth : bandwidths) {
      GP_RETURN_IF_ERROR(Crossing(flags, latency_ns, bandwidth, 0));
      GP_RETURN_IF_ERROR(Crossing(flags, latency_ns, bandwidth, 500'000'000));
    }
  }
  if (wanted("cut")) {
    GP_RETURN_IF_ERROR(Cut(flags, true));
    GP_RETURN_IF_ERROR(Cut(flags, false));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("transport_bench", "Times the transport between workers on real packets.");
  set.AddDuration("latency", &flags.latency_ns, "One way; default 30ms.");
  set.AddParsed("bandwidth", "BANDWIDTH", "200Mbps and 1Gbps", "Per direction.", [&](std::string_view text) {
    GP_ASSIGN_OR_RETURN(flags.bandwidth_bytes_per_s, ParseBandwidth(text));
    return absl::OkStatus();
  });
  set.Add("repetitions", &flags.repetitions, "N", "Messages of each size.");
  set.Add("turns", &flags.turns, "N", "Of the unshaped part.");
  set.AddDuration("outage", &flags.outage_ns, "Length of the cut.");
  set.Add("tell-link", &flags.tell_link, "The transports know the link's latency and bandwidth.");
  set.Add("congestion-control", &flags.hosts.congestion_control, "NAME", "Of the sites' hosts.");
  set.Add("slow-start-after-idle", &flags.hosts.slow_start_after_idle, "Of the sites' hosts.");
  set.Add("verbose,v", &flags.verbose, "Logs connections.");
  set.AddPositionals("PART", &flags.parts, "unshaped, crossing, cut; default all.");
  absl::Status status = set.Parse(argc - 1, argv + 1);
  if (status.ok() && set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  InitLogging({.program = "transport_bench", .level = flags.verbose ? LogLevel::kDebug : LogLevel::kError});
  if (status.ok()) {
    status = Run(flags);
  }
  if (!status.ok()) {
    fmt::print(stderr, "transport_bench: {}\n", std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
