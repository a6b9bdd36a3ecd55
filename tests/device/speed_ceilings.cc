#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/clock.h"
#include "tests/device/speed.h"

namespace geopipe {
namespace {

Trial SquareProduct(Backend& backend, int64_t extent, DType dtype) {
  const std::vector<int64_t> shape = {extent, extent};
  return {.row = {.name = "ceiling product",
                  .shape = fmt::format("{0}x{0}x{0}", extent),
                  .type = std::string(DTypeName(dtype)),
                  .flops = 2 * extent * extent * extent},
          .operands = {{.dtype = dtype, .shape = shape},
                       {.dtype = dtype, .shape = shape},
                       {.dtype = dtype, .shape = shape}},
          .enqueue = [&backend](std::span<const Tensor> operands) {
            return backend.MatMul(Product::kNT, ViewOf(operands[0]), ViewOf(operands[1]), Addend::None(),
                                  ViewOf(operands[2]));
          }};
}

// Runs the product without a pause, and tells the first and the last third apart: what a card reaches cold, and under
// its power limit.
absl::Status MeasureSustained(SpeedRun& run, Allocator& allocator, Backend& backend) {
  SpeedBench& bench = run.bench();
  Trial trial = SquareProduct(backend, run.settings().product_extent, DType::kBf16);
  std::vector<Tensor> operands;
  for (const Operand& operand : trial.operands) {
    GP_ASSIGN_OR_RETURN(Tensor tensor,
                        Tensor::Create(allocator, MemoryCategory::kWorkspace, operand.dtype, operand.shape));
    GP_RETURN_IF_ERROR(bench.FillRandom(tensor));
    operands.push_back(std::move(tensor));
  }
  constexpr int64_t kProductsOfSample = 8;
  constexpr size_t kMaxAhead = 4;
  const auto sample = [&]() -> absl::StatusOr<Completion> {
    const Mark begun = bench.device().Begin(Queue::kCompute);
    for (int64_t i = 0; i < kProductsOfSample; ++i) {
      GP_RETURN_IF_ERROR(trial.enqueue(operands));
    }
    return bench.device().Record(Queue::kCompute, begun);
  };
  GP_ASSIGN_OR_RETURN(const Completion warm_up, sample());
  GP_RETURN_IF_ERROR(bench.Wait(warm_up));
  std::vector<Completion> over;
  std::deque<Completion> ahead;
  while (over.empty() || over.back().ready_ns() - over.front().begun_ns() < run.settings().sustained_ns) {
    while (ahead.size() < kMaxAhead) {
      GP_ASSIGN_OR_RETURN(ahead.emplace_back(), sample());
    }
    GP_RETURN_IF_ERROR(bench.Wait(ahead.front()));
    over.push_back(std::move(ahead.front()));
    ahead.pop_front();
  }
  GP_RETURN_IF_ERROR(bench.Wait(ahead.back()));
  const int64_t third_ns = run.settings().sustained_ns / 3;
  const int64_t first_end_ns = over.front().begun_ns() + third_ns;
  const int64_t last_begin_ns = over.back().ready_ns() - third_ns;
  const auto figure_of = [&](const auto& counts) {
    std::vector<double> us;
    for (const Completion& work : over) {
      if (counts(work)) {
        us.push_back(TookUs(work) / kProductsOfSample);
      }
    }
    return FigureOf(us.empty() ? std::vector<double>{TookUs(over.back()) / kProductsOfSample} : std::move(us));
  };
  const auto add = [&](std::string_view when, const Figure& figure) {
    trial.row.figure = figure;
    trial.row.note = when;
    run.Add(trial.row);
    return trial.row.flops_per_s();
  };
  const double cold = add("first third of a run without a pause",
                          figure_of([&](const Completion& work) { return work.ready_ns() <= first_end_ns; }));
  const double warm =
      add("last third", figure_of([&](const Completion& work) { return work.begun_ns() >= last_begin_ns; }));
  run.ceilings.flops_per_s = std::max(cold, warm);
  run.headlines.push_back(fmt::format("product {:.0f} then {:.0f} TFLOP/s", cold / 1e12, warm / 1e12));
  return absl::OkStatus();
}

absl::Status MeasureDeviceCopy(SpeedRun& run, Allocator& allocator) {
  Device& device = run.bench().device();
  const int64_t bytes = run.settings().copy_bytes;
  Trial trial = {.row = {.name = "ceiling copy", .shape = fmt::format("{} bytes", bytes), .bytes = 2 * bytes},
                 .operands = {{.shape = {bytes / 2}}, {.shape = {bytes / 2}}},
                 .enqueue = [&](std::span<const Tensor> operands) {
                   return device.Copy(operands[0].address(), operands[1].address(), bytes, Queue::kCompute);
                 }};
  trial.row.note = "of device memory, read and written";
  GP_ASSIGN_OR_RETURN(trial.row.figure, run.Measure(allocator, trial));
  run.ceilings.copy_bytes_per_s = trial.row.bytes_per_s();
  run.headlines.push_back(fmt::format("copy {:.0f} GB/s", trial.row.bytes_per_s() / 1e9));
  return absl::OkStatus();
}

// Copies between the device and pinned memory of the host.
absl::Status MeasureCrossings(SpeedRun& run, Allocator& allocator) {
  SpeedBench& bench = run.bench();
  Device& device = bench.device();
  const int64_t bytes = run.settings().copy_bytes;
  std::array<Tensor, 2> here;  // what goes out, and what comes in
  std::array<Tensor, 2> there;
  for (size_t i = 0; i < here.size(); ++i) {
    const auto make = [&](Allocator& from) {
      return Tensor::Create(from, MemoryCategory::kTransport, DType::kBf16, {bytes / 2});
    };
    GP_ASSIGN_OR_RETURN(here[i], make(allocator));
    GP_ASSIGN_OR_RETURN(there[i], make(allocator.staging()));
    std::fill_n(there[i].data(), bytes, std::byte{0});
    GP_RETURN_IF_ERROR(bench.FillRandom(here[i]));
  }
  GP_RETURN_IF_ERROR(bench.Wait(device.Record(Queue::kCompute)));
  struct Way {
    std::string name;
    bool goes_out = false;
    bool comes_in = false;
  };
  for (const Way& way : {Way{"ceiling copy out", true, false}, Way{"ceiling copy in", false, true},
                         Way{"ceiling copies both ways", true, true}}) {
    const auto once = [&]() -> absl::StatusOr<double> {
      const Mark begun_out = device.Begin(Queue::kOut);
      const Mark begun_in = device.Begin(Queue::kIn);
      Completion out;
      Completion in;
      if (way.goes_out) {
        GP_RETURN_IF_ERROR(device.Copy(here[0].address(), there[0].address(), bytes, Queue::kOut));
        out = device.Record(Queue::kOut, begun_out);
      }
      if (way.comes_in) {
        GP_RETURN_IF_ERROR(device.Copy(there[1].address(), here[1].address(), bytes, Queue::kIn));
        in = device.Record(Queue::kIn, begun_in);
      }
      GP_RETURN_IF_ERROR(bench.Wait(out));
      GP_RETURN_IF_ERROR(bench.Wait(in));
      const int64_t end_ns = std::max(out.ready_ns(), in.ready_ns());
      const int64_t begin_ns = !way.comes_in   ? out.begun_ns()
                               : !way.goes_out ? in.begun_ns()
                                               : std::min(out.begun_ns(), in.begun_ns());
      return static_cast<double>(end_ns - begin_ns) / 1e3;
    };
    GP_RETURN_IF_ERROR(once().status());
    std::vector<double> us;
    for (int64_t i = 0; i < run.settings().rounds * run.settings().samples; ++i) {
      GP_ASSIGN_OR_RETURN(us.emplace_back(), once());
    }
    run.Add({.name = way.name,
             .shape = fmt::format("{} bytes", bytes),
             .figure = FigureOf(std::move(us)),
             .bytes = (way.goes_out && way.comes_in ? 2 : 1) * bytes});
  }
  return absl::OkStatus();
}

// Time from the call that records a mark in an empty queue to the callback of its completion.
absl::Status MeasureCallbacks(SpeedRun& run) {
  SpeedBench& bench = run.bench();
  std::vector<double> us;
  for (int64_t i = 0; i < run.settings().marks; ++i) {
    const auto called_ns = std::make_shared<int64_t>(0);
    const int64_t begin_ns = Clock::Real().NowNs();
    const Completion mark = bench.device().Record(Queue::kCompute);
    mark.Then([called_ns] { *called_ns = Clock::Real().NowNs(); });
    GP_RETURN_IF_ERROR(bench.Wait(mark));  // which is behind the callback
    us.push_back(static_cast<double>(*called_ns - begin_ns) / 1e3);
  }
  const Figure figure = FigureOf(std::move(us));
  run.Add({.name = "callback", .shape = "an empty mark", .figure = figure, .note = "host time"});
  run.headlines.push_back(fmt::format("callback {:.0f} us", figure.median_us));
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureCeilings(SpeedRun& run) {
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SpeedEngine> engine, SpeedEngine::Open(run));
  Allocator& allocator = engine->allocator;
  Backend& backend = *engine->backend;
  GP_RETURN_IF_ERROR(MeasureSustained(run, allocator, backend));
  GP_RETURN_IF_ERROR(
      run.Measure(allocator, SquareProduct(backend, run.settings().product_extent, DType::kFp32)).status());
  GP_RETURN_IF_ERROR(MeasureDeviceCopy(run, allocator));
  GP_RETURN_IF_ERROR(MeasureCrossings(run, allocator));
  return MeasureCallbacks(run);
}

}  // namespace geopipe
