// Acceptance: does a rehearsal of tensor and data parallelism take the time that its plan predicted? Sixteen modelled
// workers on this machine run the plans of deploy/examples/grid.yaml (tensor 2 x data 2 x 4 pipeline ranks over two
// sites): replicas on two nodes of a site whose network is shaped, with three schedules; over a link that their
// messages fill to a good part; and replicas on one node. Prints predicted and measured iteration of each, and how many
// processors the whole federation kept busy. Then eight workers train deploy/examples/parallel.yaml (tensor 2 x data 2
// x 2 sites, bf16) on paced devices. Exits 1 when a modelled run is more than 3 % off, a paced one more than 5 %, or
// the one of which a stage is slower than the plan knows is not: that has to show.
//
//   grid_bench [ITERATIONS]    of each run, 8 where it is left out; paced ones do twice as many
#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/process.h"

namespace geopipe {
namespace {

constexpr double kMaxError = 0.03;
constexpr double kMaxPacedError = 0.05;
constexpr size_t kMaxTextBytes = size_t{1} << 24;
constexpr int64_t kRunLimitNs = 600'000'000'000;

struct Variant {
  std::string name;
  std::vector<std::pair<std::string, std::string>> topology;  // changes of the example
  std::vector<std::string> flags;
  bool is_off = false;    // by more than is allowed, and ought to be
  bool is_paced = false;  // parallel.yaml in the place of grid.yaml
};

const Variant kVariants[] = {
    {.name = "replicas on two nodes", .topology = {}, .flags = {}},
    {.name = "the same, 1f1b", .topology = {}, .flags = {"--schedule", "1f1b"}},
    {.name = "the same, zb-v", .topology = {}, .flags = {"--schedule", "zb-v"}},
    {.name = "narrow link", .topology = {{"bandwidth: 1Gbps", "bandwidth: 250Mbps"}}, .flags = {}},
    {.name = "replicas on one node",
     .topology = {{"nodes: 4\n    devices_per_node: 2", "nodes: 2\n    devices_per_node: 4"},
                  {"nodes: 4, devices_per_node: 2", "nodes: 2, devices_per_node: 4"},
                  {"    network: &network {bandwidth: 10Gbps, latency: 20us, per: node}\n", ""},
                  {", network: *network", ""}},
     .flags = {}},
    {.name = "stage 1 slower by a fifth", .topology = {}, .flags = {"--slowdown", "stage=1:1.2"}, .is_off = true},
    {.name = "paced, bf16", .topology = {}, .flags = {}, .is_paced = true},
    {.name = "paced, bf16, 1f1b", .topology = {}, .flags = {"--schedule", "1f1b"}, .is_paced = true},
};

absl::StatusOr<std::string> Example(const std::string& name,
                                    const std::vector<std::pair<std::string, std::string>>& changes) {
  GP_ASSIGN_OR_RETURN(std::string text,
                      ReadFile(fmt::format("{}/deploy/examples/{}", GEOPIPE_SOURCE_DIR, name), kMaxTextBytes));
  for (const auto& [from, to] : changes) {
    const size_t at = text.find(from);
    if (at == std::string::npos) {
      return absl::NotFoundError(fmt::format("{} has no '{}'", name, from));
    }
    text.replace(at, from.size(), to);
  }
  return text;
}

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Rehearses the variant and returns the playground's report as JSON.
absl::StatusOr<nlohmann::json> Rehearse(const Variant& variant, int iterations, const std::filesystem::path& folder) {
  const bool paced = variant.is_paced;
  GP_ASSIGN_OR_RETURN(const std::string job, Example(paced ? "parallel.yaml" : "grid.yaml", {}));
  GP_ASSIGN_OR_RETURN(const std::string topology,
                      Example(paced ? "two-boxes.yaml" : "two-sites.yaml", variant.topology));
  GP_RETURN_IF_ERROR(MakeFolder(folder));
  GP_RETURN_IF_ERROR(WriteFileAtomically(folder / "grid.yaml", job));
  GP_RETURN_IF_ERROR(WriteFileAtomically(folder / "two-sites.yaml", topology));
  ProcessSpec spec;
  spec.program = std::string(GEOPIPE_BINARY_DIR) + "/bin/geopipectl";
  spec.args = {"playground",
               "--job",
               (folder / "grid.yaml").string(),
               "--topology",
               (folder / "two-sites.yaml").string(),
               "--iterations",
               fmt::format("{}", paced ? 2 * iterations : iterations),
               "--backend",
               paced ? "cpu" : "modelled",
               "--output",
               folder.string(),
               "-o",
               "json"};
  spec.args.insert(spec.args.end(), variant.flags.begin(), variant.flags.end());
  if (paced) {
    spec.args.emplace_back("--pace");
  }
  spec.stdout_path = folder / "report";
  spec.stderr_path = folder / "lines";
  GP_ASSIGN_OR_RETURN(Process playground, Process::Start(spec));
  const std::optional<ExitStatus> exit_status = playground.Wait(kRunLimitNs);
  GP_ASSIGN_OR_RETURN(const std::string report, ReadFile(spec.stdout_path, kMaxTextBytes));
  GP_ASSIGN_OR_RETURN(const std::string lines, ReadFile(spec.stderr_path, kMaxTextBytes));
  if (!exit_status.has_value() || !exit_status->success()) {
    return absl::InternalError(fmt::format("the playground did not complete:\n{}", lines));
  }
  return nlohmann::json::parse(report);
}

absl::StatusOr<bool> Run(int iterations) {
  GP_ASSIGN_OR_RETURN(const TempFolder folder, TempFolder::Create("geopipe-grid-bench-"));
  bool good = true;
  int runs = 0;
  fmt::print("{:<28} {:>10} {:>10} {:>8} {:>16} {:>11}\n", "", "predicted", "measured", "error", "starts within",
             "processors");
  for (const Variant& variant : kVariants) {
    const double busy_s = ProcessorSeconds();
    const int64_t begin_ns = Clock::Real().NowNs();
    GP_ASSIGN_OR_RETURN(const nlohmann::json report,
                        Rehearse(variant, iterations, folder.path() / fmt::format("{}", ++runs)));
    const double wall_s = static_cast<double>(Clock::Real().NowNs() - begin_ns) * 1e-9;
    const double predicted_s = report["predicted"]["iteration_s"].get<double>();
    const double measured_s = report["measured"]["iteration_s"].get<double>();
    const double error = measured_s / predicted_s - 1;
    const bool is_off = std::abs(error) > (variant.is_paced ? kMaxPacedError : kMaxError);
    const bool is_right = is_off == variant.is_off;
    fmt::print("{:<28} {:>8.3f} s {:>8.3f} s {:>+6.2f} % {:>13.2f} ms {:>11.2f}{}\n", variant.name, predicted_s,
               measured_s, error * 100, report.value("start_error_p95_s", 0.0) * 1e3,
               (ProcessorSeconds() - busy_s) / wall_s, is_right ? "" : "  WRONG");
    std::fflush(stdout);
    good &= is_right;
  }
  return good;
}

}  // namespace
}  // namespace geopipe

int main(int argc, char** argv) {
  const absl::StatusOr<bool> good = geopipe::Run(argc > 1 ? std::atoi(argv[1]) : 8);
  if (!good.ok()) {
    fmt::print(stderr, "grid_bench: {}\n", std::string(good.status().message()));
    return 2;
  }
  return *good ? 0 : 1;
}
