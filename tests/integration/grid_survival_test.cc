// Ranks of tensor 2 x data 2 x 2 sites that are killed while they train, with real programs.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "proto/wire/control_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "tests/integration/grid_job.h"
#include "tests/support/durations.h"
#include "tests/support/process_federation.h"
#include "tests/support/required.h"
#include "tests/support/survival.h"

namespace geopipe {
namespace {

constexpr int64_t kGridLimitNs = 90 * kSecond;
constexpr int64_t kTrainedLimitNs = 10 * kSecond;
constexpr int64_t kGridIterations = 10;

void RequireOk(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

struct KilledJob {
  std::string name;
  int32_t zero_stage = 0;
  std::string recovery;          // "memory" or "checkpoint"
  bool has_checkpoints = false;  // after every second iteration
  // Devices of the second site that are killed: 0 and 2 have the same tensor rank of the two replicas.
  std::vector<int32_t> devices = {};
};

class GridFederation {
 public:
  GridFederation() {
    // Slow enough that an iteration takes a good quarter of a second on a machine of two processors, too.
    federation_ = Required(ProcessFederation::Start(
        {.sites = {"east", "west"},
         .latency_ns = 5 * kMs,
         .devices = 4,
         .figures = "peak_flops: 2e9, memory_bandwidth: 10GB/s, intra_node_bandwidth: 2GB/s, efficiency: 0.5"}));
  }

  // Trains it while its workers are killed once, and returns its curve and the one recovery.
  std::pair<std::string, v1::RecoverySummary> TrainUnderKill(const KilledJob& job) {
    Submit(job, {"--pace"});
    v1::JobDetail detail;
    const auto await = [&](const std::string& what, const auto& is_there) {
      const absl::StatusOr<int64_t> at_ns = AwaitNs(what, kGridLimitNs, [&]() -> absl::StatusOr<bool> {
        absl::StatusOr<v1::JobDetail> now = federation_->control().GetJob(job.name);
        if (now.ok() && IsFinal(now->summary().state())) {
          return absl::InternalError(now->summary().cause());
        }
        detail = now.ok() ? *std::move(now) : detail;
        return now.ok() && is_there();
      });
      RequireOk(at_ns.status());
      return *at_ns;
    };
    await("what it may go back to", [&] {
      return detail.summary().iterations_done() >= 4 && (!job.has_checkpoints || detail.checkpoints_size() > 0);
    });
    std::vector<ProcessInfo> workers;
    for (const int32_t device : job.devices) {
      const std::optional<ProcessInfo> worker = federation_->WorkerOf(1, device);
      REQUIRE(worker.has_value());
      workers.push_back(*worker);
    }
    const int64_t killed_ns = Clock::Real().NowNs();
    for (const ProcessInfo& worker : workers) {
      federation_->Signal(worker.pid, SIGKILL);
    }
    const int64_t running_ns = await("RUNNING", [&] {
      return detail.recoveries_size() > 0 && detail.recoveries().rbegin()->ended_unix_time_ns() > 0;
    });
    const int64_t done = detail.summary().iterations_done();
    const int64_t trained_ns = await("an iteration", [&] { return detail.summary().iterations_done() > done; });
    RequireOk(federation_->AwaitState(job.name, v1::JOB_STATE_COMPLETED, kGridLimitNs));
    const absl::StatusOr<v1::JobDetail> ended = federation_->control().GetJob(job.name);
    RequireOk(ended.status());
    INFO(ended->DebugString());
    REQUIRE(ended->recoveries_size() == 1);
    const v1::RecoverySummary& recovery = ended->recoveries(0);
    std::printf(
        "%s: %zu of 8 workers killed, RUNNING after %.2f s, an iteration more after %.2f s, from %s, %d repeated\n",
        job.name.c_str(), job.devices.size(), Seconds(running_ns - killed_ns), Seconds(trained_ns - killed_ns),
        recovery.source().c_str(), static_cast<int>(recovery.reached_iteration() - recovery.first_iteration()));
    CHECK(trained_ns - killed_ns < kTrainedLimitNs);
    CHECK(recovery.kind() == "killed");
    return {NumbersOf(Curve(job.name)), recovery};
  }

  // Numbers of the same grid and ZeRO stage, undisturbed and unpaced.
  std::string Undisturbed(int32_t zero_stage) {
    const KilledJob job{
        .name = fmt::format("alone-{}", zero_stage), .zero_stage = zero_stage, .recovery = "checkpoint"};
    Submit(job, {});
    RequireOk(federation_->AwaitState(job.name, v1::JOB_STATE_COMPLETED, kGridLimitNs));
    return NumbersOf(Curve(job.name));
  }

 private:
  static double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

  void Submit(const KilledJob& job, const std::vector<std::string>& flags) {
    const std::filesystem::path path = federation_->folder() / (job.name + ".yaml");
    const std::string checkpoint = job.has_checkpoints
                                       ? fmt::format("  checkpoint: {{path: {}, every: 2}}\n",
                                                     (federation_->folder() / ("checkpoints-" + job.name)).string())
                                       : "";
    RequireOk(WriteFileAtomically(
        path,
        GridJobText({.name = job.name,
                     .parallelism = fmt::format("tensor: 2, data: 2, pipeline: 2, zero_stage: {}", job.zero_stage),
                     .more = fmt::format("  recovery: {}\n{}", job.recovery, checkpoint),
                     .iterations = kGridIterations,
                     .tokens_per_iteration = 1024,
                     .schedule = "geopipe"})));
    std::vector<std::string> arguments{"apply", "-f", path.string()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    RequireOk(federation_->Geopipectl(arguments).status());
  }

  std::vector<v1::IterationSummary> Curve(const std::string& name) {
    const absl::StatusOr<std::vector<v1::IterationSummary>> curve = federation_->Curve(name);
    RequireOk(curve.status());
    RequireOk(CheckWhole(*curve, kGridIterations));
    return *curve;
  }

  std::unique_ptr<ProcessFederation> federation_;
};

TEST_CASE(
    "a killed rank of 8 has its state from memory, its replica or a checkpoint: trained within 10 s, the same bits") {
  GridFederation federation;
  const std::string undisturbed = federation.Undisturbed(0);
  const auto [kept, from_memory] = federation.TrainUnderKill({.name = "kept", .recovery = "memory", .devices = {3}});
  CHECK(from_memory.source() == "memory");
  CHECK(from_memory.reached_iteration() - from_memory.first_iteration() <= 1);
  CHECK(kept == undisturbed);
  // The replica alone has the state: nothing is kept beside the workers, and there is no checkpoint.
  const auto [given, from_replica] =
      federation.TrainUnderKill({.name = "given", .recovery = "checkpoint", .devices = {3}});
  CHECK(from_replica.source() == "memory");
  CHECK(from_replica.first_iteration() > 0);
  CHECK(given == undisturbed);
  // Lost on all replicas, or divided over them.
  const auto [both, from_checkpoint] =
      federation.TrainUnderKill({.name = "both", .recovery = "checkpoint", .has_checkpoints = true, .devices = {0, 2}});
  CHECK(from_checkpoint.source() == "checkpoint");
  CHECK(both == undisturbed);
  const auto [divided, of_shards] = federation.TrainUnderKill(
      {.name = "divided", .zero_stage = 2, .recovery = "checkpoint", .has_checkpoints = true, .devices = {3}});
  CHECK(of_shards.source() == "checkpoint");
  CHECK(divided == federation.Undisturbed(2));
}

}  // namespace
}  // namespace geopipe
