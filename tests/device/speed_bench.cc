#include "tests/device/speed_bench.h"

#include <algorithm>
#include <random>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/compute/open.h"
#include "runtime/tensor/staging.h"
#include "tests/support/quick_numbers.h"

namespace geopipe {
namespace {

// Numbers about 0, of this deviation.
std::vector<float> Numbers(int64_t count, float deviation, uint64_t seed) {
  QuickNumbers random(seed);
  std::vector<float> numbers(static_cast<size_t>(count));
  std::ranges::generate(numbers, [&] { return deviation * random.Normal(); });
  return numbers;
}

}  // namespace

SpeedSettings SettingsOf(bool small) {
  SpeedSettings settings;
  if (small) {
    settings.samples = 2;
    settings.round_ns = 10'000'000;
    settings.sample_ns = 10'000;
    settings.sustained_ns = 30'000'000;
    settings.product_extent = 64;
    settings.copy_bytes = int64_t{64} << 10;
    settings.marks = 20;
    settings.noise_elements = int64_t{1} << 15;
    settings.micro_batches = 2;
    settings.many_micro_batches = 3;
    settings.iterations = 1;
    settings.item_ns = 1'000'000'000;
  }
  return settings;
}

absl::StatusOr<std::unique_ptr<DeviceNoise>> DeviceNoise::Create(Allocator& allocator, Backend& backend,
                                                                 int64_t elements, uint64_t seed) {
  const auto make = [&](DType dtype) {
    return Tensor::Create(allocator, MemoryCategory::kWorkspace, dtype, {elements});
  };
  auto noise = std::make_unique<DeviceNoise>();
  GP_ASSIGN_OR_RETURN(noise->fp32_, make(DType::kFp32));
  GP_ASSIGN_OR_RETURN(noise->bf16_, make(DType::kBf16));
  const std::vector<float> numbers = Numbers(elements, 1.0F, seed);
  GP_RETURN_IF_ERROR(FillInRuns(noise->fp32_, [&](const Tensor& host) {
    std::ranges::copy(numbers, host.fp32().begin());
    return absl::OkStatus();
  }));
  GP_RETURN_IF_ERROR(backend.Convert(ViewOf(noise->fp32_), ViewOf(noise->bf16_)));
  return noise;
}

absl::Status DeviceNoise::Fill(const Tensor& tensor) {
  constexpr int64_t kStep = 64 * 10007;  // a multiple of 256 bytes
  const Tensor& noise = tensor.dtype() == DType::kFp32 ? fp32_ : bf16_;
  first_ = (first_ + kStep) % noise.elements();
  int64_t from = first_;
  for (int64_t to = 0; to < tensor.elements();) {
    const int64_t count = std::min(tensor.elements() - to, noise.elements() - from);
    GP_RETURN_IF_ERROR(Copy(noise.Part(from, {count}), tensor.Part(to, {count})));
    to += count;
    from = 0;
  }
  return absl::OkStatus();
}

QuickWeights::QuickWeights(uint64_t seed) : numbers_(Numbers(int64_t{1} << 20, 0.02F, seed)) {}

absl::Status QuickWeights::Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) {
  return ReadPiece(WholeTensor(name, shape), values);
}

absl::Status QuickWeights::ReadPiece(const TensorPiece& piece, std::span<float> values) {
  if (piece.tensor.is_vector()) {
    std::ranges::fill(values, 1.0F);
    return absl::OkStatus();
  }
  while (!values.empty()) {
    const size_t count = std::min(values.size(), numbers_.size());
    std::copy_n(numbers_.begin(), count, values.begin());
    values = values.subspan(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SpeedBench>> SpeedBench::Create(GpuDevice& device, const SpeedSettings& settings,
                                                               uint64_t seed) {
  std::unique_ptr<SpeedBench> bench(new SpeedBench(device, settings, seed));
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                      OpenBackend(BackendKind::kCuda, /*threads=*/1, bench->allocator_));
  GP_ASSIGN_OR_RETURN(bench->noise_, DeviceNoise::Create(bench->allocator_, *backend, settings.noise_elements, seed));
  return bench;
}

absl::StatusOr<Tensor> SpeedBench::MakeOperand(Allocator& allocator, const Operand& operand) {
  GP_ASSIGN_OR_RETURN(Tensor tensor,
                      Tensor::Create(allocator, MemoryCategory::kWorkspace, operand.dtype, operand.shape));
  if (operand.contents == Operand::Contents::kZero) {
    GP_RETURN_IF_ERROR(device_.Enter());
    GP_RETURN_IF_ERROR(device_.StatusOf(
        device_.port().runtime.fill(tensor.address(), 0, tensor.bytes(), device_.stream(Queue::kCompute)),
        "enqueuing zeros"));
    return tensor;
  }
  if (operand.dtype != DType::kInt32) {
    GP_RETURN_IF_ERROR(noise_->Fill(tensor));
    return tensor;
  }
  GP_RETURN_IF_ERROR(FillFromHost(tensor, [&](const Tensor& host) {
    std::mt19937_64 random(seed_);
    std::ranges::generate(host.int32(),
                          [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(operand.below)); });
    return absl::OkStatus();
  }));
  return tensor;
}

absl::StatusOr<Figure> SpeedBench::Measure(Allocator& allocator, const Trial& trial) {
  int64_t bytes = 0;
  std::vector<std::vector<Tensor>> sets(1);
  for (const Operand& operand : trial.operands) {
    GP_ASSIGN_OR_RETURN(Tensor tensor, MakeOperand(allocator, operand));
    bytes += tensor.bytes();
    sets.front().push_back(std::move(tensor));
  }
  while (std::ssize(sets) < SetsOf(bytes, settings_.cache_bytes)) {
    std::vector<Tensor>& set = sets.emplace_back();
    for (const Operand& operand : trial.operands) {
      GP_ASSIGN_OR_RETURN(Tensor tensor, MakeOperand(allocator, operand));
      set.push_back(std::move(tensor));
    }
  }
  std::vector<double> samples;
  for (int64_t round = 0; round < settings_.rounds; ++round) {
    GP_ASSIGN_OR_RETURN(const std::vector<double> more, MeasureRound([&](int64_t run) {
                          return trial.enqueue(sets[static_cast<size_t>(run % std::ssize(sets))]);
                        }));
    samples.insert(samples.end(), more.begin(), more.end());
  }
  return FigureOf(std::move(samples));
}

absl::StatusOr<std::vector<double>> SpeedBench::MeasureRound(absl::FunctionRef<absl::Status(int64_t run)> enqueue) {
  int64_t run = 0;
  const auto sample = [&](int64_t runs) -> absl::StatusOr<Completion> {
    const Mark begun = device_.Begin(Queue::kCompute);
    for (int64_t i = 0; i < runs; ++i) {
      GP_RETURN_IF_ERROR(enqueue(run++));
    }
    return device_.Record(Queue::kCompute, begun);
  };
  // The first run makes plans and takes workspace; the second shows about how long a run takes.
  Completion warm_up;
  for (int i = 0; i < 2; ++i) {
    GP_ASSIGN_OR_RETURN(warm_up, sample(1));
    GP_RETURN_IF_ERROR(Wait(warm_up));
  }
  const RoundPlan plan =
      PlanRound(warm_up.ready_ns() - warm_up.begun_ns(), settings_.samples, settings_.sample_ns, settings_.round_ns);
  // Samples follow one another without a wait, so that the queue is never empty; the first of them fills it.
  std::vector<Completion> work;
  for (int64_t i = 0; i <= plan.samples; ++i) {
    GP_ASSIGN_OR_RETURN(work.emplace_back(), sample(plan.runs));
  }
  GP_RETURN_IF_ERROR(Wait(work.back()));
  std::vector<double> us;
  for (size_t i = 1; i < work.size(); ++i) {
    us.push_back(TookUs(work[i]) / static_cast<double>(plan.runs));
  }
  return us;
}

}  // namespace geopipe
