#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "optimizer/schedule/csv.h"
#include "optimizer/schedule/lowering.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/interruptible_clock.h"
#include "tests/runtime/executor/pipeline_run.h"

namespace geopipe {
namespace {

TEST_CASE("rendezvous is refused") {
  PipelineOptions options;
  options.comm = CommMode::kRendezvous;
  CHECK(RunPipeline(options).statuses[0].message() ==
        "comm rendezvous can be simulated but not run: receives are always posted ahead; use nonblocking or blocking");
}

TEST_CASE("an engine's error names iteration and action, and the others end with their own") {
  PipelineOptions options;
  options.ranks = 3;
  options.prepare = [](std::span<const std::unique_ptr<ToyEngine>> engines, InProcessNetwork&) {
    engines[1]->set_on_forward([](int64_t iteration, int32_t micro_batch) {
      return iteration == 2 && micro_batch == 5 ? absl::ResourceExhaustedError("no memory") : absl::OkStatus();
    });
  };
  const PipelineRun run = RunPipeline(options);
  CHECK(run.statuses[1].code() == absl::StatusCode::kResourceExhausted);
  CHECK(run.statuses[1].message() == "iteration 2, 1F5 on rank 1: no memory");
  CHECK(absl::IsUnavailable(run.statuses[0]));
  CHECK(absl::IsUnavailable(run.statuses[2]));
}

TEST_CASE("a loss that is not a number ends the run") {
  PipelineOptions options;
  options.ranks = 2;
  options.prepare = [](std::span<const std::unique_ptr<ToyEngine>> engines, InProcessNetwork&) {
    engines[1]->set_diverges_at(3);
  };
  const PipelineRun run = RunPipeline(options);
  CHECK(absl::IsOutOfRange(run.statuses[1]));
  CHECK(run.statuses[1].message() ==
        "iteration 3, end on rank 1: the loss is nan on stage 1; lower training.learning_rate, or give "
        "training.grad_clip or "
        "warmup_iterations");
  CHECK(absl::IsUnavailable(run.statuses[0]));
}

TEST_CASE("a gradient norm that is not a number ends the run on every rank, naming where it began") {
  PipelineOptions options;
  options.ranks = 3;
  options.norms = true;
  options.prepare = [](std::span<const std::unique_ptr<ToyEngine>> engines, InProcessNetwork&) {
    engines[0]->set_gradient_diverges_at(2);
    engines[1]->set_gradient_diverges_at(2);
  };
  const PipelineRun run = RunPipeline(options);
  int named = 0;
  for (size_t stage = 0; stage < 3; ++stage) {
    named += run.statuses[stage].message() == "iteration 2, end on rank " + std::to_string(stage) +
                                                  ": the gradient norm is nan, from the gradient of layers.2 on rank "
                                                  "1 on; lower training.learning_rate, or give warmup_iterations"
                 ? 1
                 : 0;
    CHECK((absl::IsOutOfRange(run.statuses[stage]) || absl::IsUnavailable(run.statuses[stage])));
  }
  CHECK(named >= 1);  // the others may have heard of it first
}

// Stage 1 of two, alone: its peer says nothing.
absl::Status RunAlone(CommMode comm, const std::string& csv) {
  Allocator allocator(1 << 20);
  const ToyModel model{.micro_batches = 1};
  ToyEngine engine(model, ToyLayers(model, 1, 2), allocator);
  InProcessNetwork network(2);
  network.Add({{MessageKind::kActivation, 0, 0, 1}, 64, 1});
  network.Add({{MessageKind::kGradient, 0, 1, 0}, 64, 0});  // no slot: never acknowledged
  const auto peer = network.Endpoint(0, allocator);
  const auto transport = network.Endpoint(1, allocator);
  if (csv.empty()) {
    auto activation = Tensor::Zeros(allocator, MemoryCategory::kTransport, DType::kFp32, {5});
    CHECK(peer->Send({MessageKind::kActivation, 0, 0, 1}, {0, 0}, {.value = *std::move(activation)}).ok());
  }
  ExecutorOptions options;
  options.schedule = *Lower(*ParseCsv("0F0,0B0\n1F0,1B0\n", PipelineShape::Linear(2, 1)));
  options.pipeline_rank = 1;
  options.pipeline = {0, 1};
  options.comm = comm;
  options.engines = {nullptr, &engine};
  options.end_iteration = 1;
  options.progress_deadline_ns = -1'000'000'000'000'000'000;  // long past
  auto executor = Executor::Create(options, *transport, allocator, Clock::Real());
  return executor->Run();
}

TEST_CASE("a peer that is stuck is an error of this stage, naming the message") {
  const absl::Status received = RunAlone(CommMode::kNonBlocking, "nothing sent");
  CHECK(absl::IsDeadlineExceeded(received));
  CHECK(received.message() ==
        "iteration 0, 1RECV_F0 on rank 1: the activation of boundary 0 was not received from rank 0 within "
        "-1000000000.0 s; that "
        "rank, or the link to it, is stuck");
  const absl::Status sent = RunAlone(CommMode::kBlocking, "");
  CHECK(absl::IsDeadlineExceeded(sent));
  CHECK(sent.message() ==
        "iteration 0, 1SEND_B0 on rank 1: the gradient of boundary 0 was not acknowledged by rank 0 within "
        "-1000000000.0 s; that "
        "rank, or the link to it, is stuck");
}

TEST_CASE("stopped in the middle of an iteration, every stage ends") {
  std::atomic<bool> stop = false;
  PipelineOptions options;
  options.ranks = 3;
  options.stop = &stop;
  options.end_iteration = 1'000'000;
  options.prepare = [&](std::span<const std::unique_ptr<ToyEngine>> engines, InProcessNetwork& network) {
    engines[1]->set_on_forward([&](int64_t iteration, int32_t micro_batch) {
      if (iteration == 1 && micro_batch == 3) {
        stop = true;
        network.FailAll(absl::CancelledError("stopped"));
      }
      return absl::OkStatus();
    });
  };
  for (const absl::Status& status : RunPipeline(options).statuses) {
    CHECK(absl::IsCancelled(status));
  }
}

TEST_CASE("a sleeper of an interrupted clock wakes, and nobody sleeps any more") {
  InterruptibleClock clock(Clock::Real());
  const int64_t far_ns = clock.NowNs() + int64_t{3600} * 1'000'000'000;
  std::thread sleeper([&] { clock.SleepUntilNs(far_ns); });
  clock.Interrupt();
  sleeper.join();
  clock.SleepUntilNs(far_ns);
  CHECK(clock.NowNs() < far_ns);
}

}  // namespace
}  // namespace geopipe
