#include "coordinator/cli/playground/playground_memory.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/model/cost_model.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/model/plan/rank_memory.h"
#include "optimizer/model/transformer.h"
#include "optimizer/schedule/schedule_table.h"

namespace geopipe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

JobSpec Job() {
  JobSpec job;
  job.model = *ModelPreset("llama-2-7b");
  job.precision = Precision::kBf16;
  return job;
}

PlaygroundLayout Layout(int32_t nodes, int32_t devices) {
  PlaygroundLayout layout;
  for (int32_t node = 0; node < nodes; ++node) {
    layout.nodes.push_back({.site = "a", .node = "n" + std::to_string(node), .devices = devices, .device = {}});
  }
  layout.sites = {"a"};
  return layout;
}

// Two stages in two sites, four micro-batches.
struct TwoStages {
  JobSpec job = Job();
  Plan plan;
  Schedule schedule;

  TwoStages() {
    plan.schedule = ScheduleKind::kGpipe;
    plan.micro_batch_size = 1;
    plan.sequence_length = 1024;
    plan.micro_batches = 4;
    plan.delta_n = {0};
    const std::vector<LayerRange> layers = SplitLayers(job.model, 2);
    plan.Append({.site = "a"}, layers[0]);
    plan.Append({.site = "b"}, layers[1]);
    schedule = *MakeSchedule(ScheduleKind::kGpipe, PipelineShape::Linear(2, 4), BoundaryDeltaN(plan));
  }
  int64_t needed_bytes() const {
    int64_t bytes = 0;
    for (const RankMemory& rank : MemoryOfRanks(job, plan, schedule)) {
      bytes += rank.peak;
    }
    return bytes;
  }
  absl::Status Check(BackendKind backend, int64_t available) const {
    return CheckHostHolds(job, backend, plan, schedule, available);
  }
};

TEST_CASE("a host holds a playground's processes, and one copy of the states where they compute") {
  // 6,738,415,616 parameters of 18 bytes in bf16 (norms of 16), and seventeen processes.
  const PlaygroundLayout layout = Layout(2, 4);
  const int64_t processes = kCoordinatorBytes + 2 * kAgentBytes + 8 * kWorkerBytes;
  CHECK(CheckHostHolds(Job(), BackendKind::kModelled, layout, processes).ok());
  const absl::Status modelled = CheckHostHolds(Job(), BackendKind::kModelled, layout, processes - 1);
  CHECK(modelled.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(modelled.message()),
             Catch::StartsWith("8 workers need ") &&
                 Catch::EndsWith("are free; describe a cluster of fewer devices, or free memory on this host"));

  const absl::Status computing = CheckHostHolds(Job(), BackendKind::kCpu, layout, 20 * kGiB);
  CHECK_THAT(
      std::string(computing.message()),
      Catch::StartsWith("8 workers need 113 GiB here at least, of which one copy of the model's states takes 113 "
                        "GiB, and 20.0 GiB are free; rehearse it with --backend modelled"));
  CHECK(CheckHostHolds(Job(), BackendKind::kCpu, layout, 120 * kGiB).ok());
}

TEST_CASE("a host holds what the plan's ranks take") {
  const TwoStages f;
  CHECK(f.Check(BackendKind::kCpu, f.needed_bytes()).ok());
  CHECK_THAT(std::string(f.Check(BackendKind::kCpu, f.needed_bytes() - 1).message()),
             Catch::StartsWith("2 workers need ") && Catch::Contains("--backend modelled"));
}

TEST_CASE("GPUs have a memory of their own: a host holds processes, and what ranks keep in its memory") {
  const PlaygroundLayout layout = Layout(2, 4);
  CHECK(CheckHostHolds(Job(), BackendKind::kCuda, layout, kCoordinatorBytes + 2 * kAgentBytes + 8 * kWorkerBytes).ok());
  TwoStages f;
  CHECK(f.Check(BackendKind::kCuda, kGiB).ok());
  CHECK_FALSE(f.Check(BackendKind::kCuda, 0).ok());  // messages lie there
  f.job.recovery = Recovery::kMemory;
  CHECK_FALSE(f.Check(BackendKind::kCuda, kGiB).ok());
  CHECK(f.Check(BackendKind::kCuda, f.needed_bytes()).ok());
}

TEST_CASE("where nothing is computed, the plan's messages count alone") {
  const TwoStages f;
  // GPipe: of four micro-batches a slot each way on both stages, and as many sends.
  const int64_t message = 1024 * f.job.model.hidden_size * 2;
  CHECK(f.Check(BackendKind::kModelled, 16 * message).ok());
  CHECK_THAT(
      std::string(f.Check(BackendKind::kModelled, message).message()),
      Catch::StartsWith("2 workers need ") && Catch::Contains(" here for the messages of this plan, and 8.00 MiB "
                                                              "are free; leave the job smaller "));
}

}  // namespace
}  // namespace geopipe
