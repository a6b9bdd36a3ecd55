#include "runtime/worker/rank_job.h"

#include <catch2/catch.hpp>
#include <string>

#include "optimizer/model/patience.h"
#include "proto/wire/schedule_wire.h"
#include "tests/runtime/worker/fake_cluster.h"

namespace geopipe {
namespace {

absl::Status Decode(const v1::PrepareCommand& command) { return DecodePreparation(1, command).status(); }

TEST_CASE("what this worker cannot run is refused by key and value") {
  const JobSpec job = SmallJob("/data");
  v1::PrepareCommand prepare = PrepareCommandFor(job, {}, 3, 1).prepare();
  CHECK(Decode(prepare).ok());

  prepare.mutable_run()->set_backend(v1::BACKEND_KIND_CUDA);
  CHECK(Decode(prepare).ok());  // it is the host that may not have it
  RankPreparation cuda = *DecodePreparation(1, prepare);
  cuda.gpu_library = "/no/such/library.so";
  CHECK(
      RankJob::Prepare(cuda, Clock::Real(), nullptr).status().message() ==
      "GPUs cannot be used: /no/such/library.so is neither beside the program nor on the library path; install it, or "
      "add its folder to LD_LIBRARY_PATH");

  JobSpec kept = job;
  kept.checkpoint.path = "/checkpoints";
  prepare = PrepareCommandFor(kept, {}, 3, 1).prepare();
  CHECK(Decode(prepare).ok());
  prepare.mutable_run()->set_backend(v1::BACKEND_KIND_MODELLED);
  CHECK(Decode(prepare).message() ==
        "checkpoint.path is /checkpoints; the modelled backend computes nothing that could be kept: leave it out");

  prepare = PrepareCommandFor(job, {}, 3, 1).prepare();
  prepare.mutable_plan()->set_comm(v1::COMM_MODE_RENDEZVOUS);
  CHECK(Decode(prepare).message() == "comm rendezvous can be simulated but not run; use nonblocking or blocking");
}

TEST_CASE("near are the ranks of one site, wherever in the pipeline they are") {
  Plan plan;
  for (const char* site : {"east", "west", "east", "north", "north"}) {
    plan.Append({.site = site}, {});
  }
  CHECK(RanksOfSite(plan, 0) == std::set<int32_t>{2});
  CHECK(RanksOfSite(plan, 1).empty());
  CHECK(RanksOfSite(plan, 4) == std::set<int32_t>{3});
  Plan replicated;
  replicated.grid.data = 2;
  replicated.Append({.site = "east"}, {});
  CHECK(RanksOfSite(replicated, 1) == std::set<int32_t>{0});
}

TEST_CASE("parts that do not fit each other are refused") {
  const JobSpec job = SmallJob("/data");
  v1::PrepareCommand prepare = PrepareCommandFor(job, {}, 3, 3).prepare();
  CHECK(Decode(prepare).message() == "prepare.rank is 3; the plan has 3 ranks");
  prepare = PrepareCommandFor(job, {}, 3, 1).prepare();
  *prepare.mutable_costs() = PrepareCommandFor(job, {}, 2, 1).prepare().costs();
  CHECK(Decode(prepare).message() ==
        "prepare: plan, schedule and costs are not of one shape (3 stages on 3 pipeline ranks, 8 micro-batches)");
  prepare = PrepareCommandFor(job, {}, 3, 1).prepare();
  prepare.mutable_schedule()->set_csv("0F0\n\n\n");
  CHECK(absl::IsInvalidArgument(Decode(prepare)));
}

TEST_CASE("a peer counts as stuck after ten times the whole iteration's work, at least a minute") {
  PipelineCosts costs;
  costs.shape = PipelineShape::Linear(2, 3);
  costs.forward_ns = {1, 2};
  costs.input_grad_ns = {3, 4};
  costs.boundaries.resize(1);
  CHECK(ProgressDeadlineNs(costs) == 60'000'000'000);
  costs.forward_ns[0] = 20'000'000'000;
  CHECK(ProgressDeadlineNs(costs) == 10 * 3 * (20'000'000'000 + 3 + 2 + 4));
  // A prediction of years fits 64 bits, and ten times that does not.
  costs.forward_ns[0] = 1'000'000'000'000'000'000;
  CHECK(ProgressDeadlineNs(costs) == kMaxPatienceNs);
}

}  // namespace
}  // namespace geopipe
