// Acceptance: is the overlap real below UCX, too? Runs deploy/examples/overlap.yaml with the shaper off. What delays
// the messages is a relay of IP packets between two network namespaces, so connections, windows and acknowledgements
// are the kernel's own. Needs root and /dev/net/tun; exits 77 where they are not there, 1 when a bar is missed.
//
//   relay_federation                          the three variants, then a cut
//   relay_federation cut --outage 5s          one part alone: variants, cut
//   relay_federation --programs /usr/bin --output FOLDER    the installed programs; traces go to FOLDER
//
// Nothing else should run beside it: the durations of a paced run are real time.
#include "tests/support/relay_federation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "coordinator/spec/case_file.h"
#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/flags.h"
#include "runtime/base/log.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

constexpr int kExitMissed = 1;
constexpr int kExitImpossible = 77;
constexpr int64_t kLimitNs = int64_t{240} * 1'000'000'000;
constexpr double kMsPerS = 1e3;

// The bars.
constexpr double kMaxError = 0.05;             // |measured / predicted - 1|
constexpr double kMaxOfBlocking = 0.62;        // geopipe's iteration over that of 1f1b, blocking
constexpr double kMaxOfNonBlocking = 0.65;     // and of 1f1b, non-blocking
constexpr int64_t kMaxLostNs = 1'000'000'000;  // by a cut, beyond its own length

struct Flags {
  std::vector<std::string> parts;
  std::string source = GEOPIPE_SOURCE_DIR;
  std::string programs;
  std::string output;
  int64_t iterations = 12;
  int64_t outage_ns = 5'000'000'000;
  int64_t cut_in = 5;
  int64_t cut_after_ns = 250'000'000;
  TunHostSettings hosts;
  bool verbose = false;

  bool Wants(std::string_view part) const {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  }
  std::string Example(const std::string& name) const { return source + "/deploy/examples/" + name; }
};

struct Variant {
  std::string label;
  std::vector<std::string> arguments;
};

const Variant kGeoPipe{"geopipe", {"--schedule", "geopipe"}};

int missed = 0;

// Says whether a bar holds, and remembers when it does not.
std::string Held(bool held) {
  missed += held ? 0 : 1;
  return held ? "ok" : "MISSED";
}

double Seconds(const Json& description, const char* pointer) {
  return description.value(Json::json_pointer(pointer), 0.0);
}

double Predicted(const RelayRun& run) { return Seconds(run.description, "/predicted/iteration_s"); }
double Measured(const RelayRun& run) { return Seconds(run.description, "/measured/iteration_s"); }

std::string Ms(double seconds) { return fmt::format("{:.1f} ms", seconds * kMsPerS); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// --- Runs -------------------------------------------------------------------------------------------------------

absl::StatusOr<RelayRun> Run(RelayFederation& federation, const Flags& flags, const Variant& variant,
                             const std::string& name, const RelayFederation::OnIteration& on_iteration = {}) {
  std::vector<std::string> arguments{
      "-f",           flags.Example("overlap.yaml"),      "--case", flags.Example("overlap-costs.yaml"), "--pace",
      "--iterations", fmt::format("{}", flags.iterations)};
  arguments.insert(arguments.end(), variant.arguments.begin(), variant.arguments.end());
  GP_ASSIGN_OR_RETURN(RelayRun run, federation.Train(arguments, kLimitNs, on_iteration));
  if (flags.verbose) {
    for (const Json& iteration : run.iterations) {
      fmt::print("  {}\n", iteration.dump());
    }
  }
  if (!flags.output.empty()) {
    GP_RETURN_IF_ERROR(federation.WriteTrace(run.job, flags.output + "/" + name + ".trace.json"));
  }
  return run;
}

// Losses of the job trained on one site, without link, shaper and pace.
absl::StatusOr<std::string> NumbersOfPlayground(RelayFederation& federation, const Flags& flags) {
  GP_ASSIGN_OR_RETURN(const TempFolder folder, TempFolder::Create("geopipe-relay-"));
  GP_ASSIGN_OR_RETURN(
      const std::string text,
      federation.Geopipectl({"playground", "--job", flags.Example("overlap.yaml"), "--sites", "1", "--iterations",
                             fmt::format("{}", flags.iterations), "--output", folder.path().string(), "-o", "json"},
                            kLimitNs));
  const Json report = Json::parse(text, nullptr, false);
  if (report.is_discarded() || !report.contains("iterations")) {
    return absl::InternalError(fmt::format("the playground printed no report: {}", text));
  }
  return NumbersOf(report["iterations"].get<std::vector<Json>>());
}

// --- Variants ---------------------------------------------------------------------------------------------------

absl::Status Variants(RelayFederation& federation, const Flags& flags, const std::string& numbers) {
  const std::vector<Variant> variants{
      {"1f1b:blocking", {"--schedule", "1f1b", "--comm", "blocking"}}, {"1f1b", {"--schedule", "1f1b"}}, kGeoPipe};
  constexpr double kMaxShare[] = {kMaxOfBlocking, kMaxOfNonBlocking};
  std::vector<RelayRun> runs;
  for (const Variant& variant : variants) {
    GP_ASSIGN_OR_RETURN(RelayRun run, Run(federation, flags, variant, runs.empty() ? "blocking" : variant.label));
    runs.push_back(std::move(run));
  }
  fmt::print("\n{:<14} {:>11} {:>11} {:>8} {:>17} {:>17} {:>10}\n", "variant", "predicted", "measured", "error",
             "at most 5 %", "geopipe's share", "losses");
  for (size_t i = 0; i < runs.size(); ++i) {
    const double error = Measured(runs[i]) / Predicted(runs[i]) - 1;
    const double ahead = Measured(runs.back()) / Measured(runs[i]);
    const std::string share =
        i + 1 == runs.size() ? "-"
                             : fmt::format("{:.3f} <= {:.2f} {}", ahead, kMaxShare[i], Held(ahead <= kMaxShare[i]));
    const bool equal = NumbersOf(runs[i].iterations) == numbers;
    fmt::print("{:<14} {:>11} {:>11} {:>+7.1f}% {:>17} {:>17} {:>10}\n", variants[i].label, Ms(Predicted(runs[i])),
               Ms(Measured(runs[i])), error * 100, Held(std::abs(error) <= kMaxError), share,
               equal ? "equal" : "DIFFER");
    missed += equal ? 0 : 1;
  }
  return absl::OkStatus();
}

// --- Cut --------------------------------------------------------------------------------------------------------

absl::Status Cut(RelayFederation& federation, const Flags& flags, const std::string& numbers) {
  const int64_t lost_before = federation.relay().counters(0).dropped_cut + federation.relay().counters(1).dropped_cut;
  GP_ASSIGN_OR_RETURN(const RelayRun run, Run(federation, flags, kGeoPipe, "cut", [&](const Json& iteration) {
                        if (iteration.value("iteration", int64_t{-1}) == flags.cut_in - 1) {
                          // The cut one has begun.
                          Clock::Real().SleepUntilNs(Clock::Real().NowNs() + flags.cut_after_ns);
                          federation.relay().Cut(flags.outage_ns);
                        }
                      }));
  const int64_t packets =
      federation.relay().counters(0).dropped_cut + federation.relay().counters(1).dropped_cut - lost_before;
  std::vector<double> seconds;
  for (const Json& iteration : run.iterations) {
    seconds.push_back(iteration.value("duration_s", 0.0));
  }
  const double median = Median(seconds);
  const double longest = seconds.empty() ? 0 : *std::max_element(seconds.begin(), seconds.end());
  double all = 0;  // over the cut iteration and those after it
  for (size_t i = static_cast<size_t>(flags.cut_in); i < seconds.size(); ++i) {
    all += seconds[i] - median;
  }
  const double most = static_cast<double>(flags.outage_ns + kMaxLostNs) * 1e-9;
  const bool equal = NumbersOf(run.iterations) == numbers;
  fmt::print("\ncut of {} in iteration {} ({} packets lost, {} reconnects): {}, losses {}\n",
             FormatDuration(flags.outage_ns), flags.cut_in, packets, run.reconnects, run.description.value("state", ""),
             equal ? "equal" : "DIFFER");
  fmt::print(
      "that iteration took {}, the median is {}: lost {:.2f} s <= {:.2f} s {}; with what the later ones lost or "
      "made good {:.2f} s {}\n",
      Ms(longest), Ms(median), longest - median, most, Held(longest - median <= most), all, Held(all <= most));
  missed += equal && packets > 0 && run.reconnects > 0 ? 0 : 1;
  return absl::OkStatus();
}

absl::Status RunParts(const Flags& flags) {
  GP_ASSIGN_OR_RETURN(const PipelineCosts costs, ReadCaseFile(flags.Example("overlap-costs.yaml")));
  const BoundaryCost& crossing = costs.boundaries.front();
  RelayFederationOptions options;
  options.hosts = flags.hosts;
  options.programs = flags.programs;
  options.link.latency_ns = crossing.latency_ns;
  options.link.bandwidth_bytes_per_s =
      static_cast<double>(crossing.message_bytes) * 1e9 / static_cast<double>(crossing.serialization_ns);
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<RelayFederation> federation, RelayFederation::Start(options));
  fmt::print("overlap.yaml, two sites, {} iterations; relay: {} one way, {}; no shaper\n", flags.iterations,
             FormatDuration(options.link.latency_ns), FormatBandwidth(options.link.bandwidth_bytes_per_s));
  if (!flags.output.empty()) {
    GP_RETURN_IF_ERROR(MakeFolder(flags.output));
  }
  GP_ASSIGN_OR_RETURN(const std::string numbers, NumbersOfPlayground(*federation, flags));
  if (flags.Wants("variants")) {
    GP_RETURN_IF_ERROR(Variants(*federation, flags, numbers));
  }
  if (flags.Wants("cut")) {
    GP_RETURN_IF_ERROR(Cut(*federation, flags, numbers));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("relay_federation", "Prediction, overlap and outages over real packets between two network namespaces.");
  set.Add("source", &flags.source, "FOLDER", "The source tree, for deploy/examples.");
  set.Add("programs", &flags.programs, "FOLDER", "Programs to run; those beside this one if not given.");
  set.Add("output", &flags.output, "FOLDER", "Traces are written there.");
  set.Add("iterations", &flags.iterations, "N", "Of each run.");
  set.AddDuration("outage", &flags.outage_ns, "Length of the cut.");
  set.Add("cut-in", &flags.cut_in, "N", "Iteration that is cut, counted from 0.");
  set.AddDuration("cut-after", &flags.cut_after_ns, "From the report of the iteration before to the cut.");
  set.Add("congestion-control", &flags.hosts.congestion_control, "NAME", "Of the sites' hosts.");
  set.Add("slow-start-after-idle", &flags.hosts.slow_start_after_idle, "Of the sites' hosts.");
  set.Add("verbose,v", &flags.verbose, "Prints every iteration.");
  set.AddPositionals("PART", &flags.parts, "variants, cut; default both.");
  absl::Status status = set.Parse(argc - 1, argv + 1);
  if (status.ok() && set.help_requested()) {
    fmt::print("{}", set.Help());
    return 0;
  }
  InitLogging({.program = "relay_federation", .level = LogLevel::kError});
  if (status.ok()) {
    if (const absl::Status sites = TunSites::Create().status(); !sites.ok()) {
      fmt::print("left out, it needs network namespaces and tun devices: {}\n", std::string(sites.message()));
      return kExitImpossible;
    }
    status = RunParts(flags);
  }
  if (!status.ok()) {
    fmt::print(stderr, "relay_federation: {}\n", std::string(status.message()));
    return kExitMissed;
  }
  fmt::print("\n{}\n", missed == 0 ? "every bar holds" : fmt::format("{} bars missed", missed));
  return missed == 0 ? 0 : kExitMissed;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) { return geopipe::Main(argc, argv); }
