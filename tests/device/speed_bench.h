// Times work on a device by the device's own events.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/gpu/gpu_device.h"
#include "runtime/model/weight_source.h"
#include "runtime/tensor/allocator.h"
#include "tests/device/speed_figures.h"

namespace geopipe {

// Repetitions and sizes of what is measured.
struct SpeedSettings {
  int64_t rounds = 2;
  int64_t samples = 20;  // of a round, or as many as `round_ns` holds
  int64_t round_ns = 300'000'000;
  int64_t sample_ns = 500'000;           // shorter work is repeated in a sample
  int64_t sustained_ns = 3'000'000'000;  // of the product that is a ceiling
  int64_t product_extent = 8192;
  int64_t copy_bytes = int64_t{256} << 20;
  int64_t marks = 200;  // whose way to their callback is timed
  int64_t noise_elements = int64_t{1} << 24;
  int64_t cache_bytes = 0;   // of the device's cache that its cores share
  int64_t memory_bytes = 0;  // of the device's, which are free
  int64_t deadline_ns = 0;   // by which all work is over, on the monotonic clock
  int32_t micro_batches = 8;
  int32_t many_micro_batches = 32;
  int64_t iterations = 2;           // in a round
  int64_t item_ns = 3'000'000'000;  // that a part of the phase takes besides its work, at most
};
// The defaults, or `small` ones with which an emulated GPU takes seconds.
SpeedSettings SettingsOf(bool small);

// A matrix or vector that timed work reads or writes.
struct Operand {
  enum class Contents : uint8_t { kRandom, kZero };
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  Contents contents = Contents::kRandom;
  int64_t below = 0;  // of int32: numbers are from 0 to this
};

// Work that is timed alone. `enqueue` gives the compute queue one run of it on a set of operands.
struct Trial {
  SpeedRow row;
  std::vector<Operand> operands = {};
  std::function<absl::Status(std::span<const Tensor> operands)> enqueue = {};
};

// Random numbers about 0, of deviation 1, that lie on the device ready to be copied.
class DeviceNoise {
 public:
  // `backend` computes in `allocator`'s memory; the allocator outlives this.
  static absl::StatusOr<std::unique_ptr<DeviceNoise>> Create(Allocator& allocator, Backend& backend, int64_t elements,
                                                             uint64_t seed);
  // Enqueues filling a tensor of fp32 or bf16 with numbers that start elsewhere each time.
  absl::Status Fill(const Tensor& tensor);

 private:
  Tensor fp32_;
  Tensor bf16_;
  int64_t first_ = 0;
};

// Weights of a fresh model's size, at the speed of a copy: numbers repeat after a million.
class QuickWeights final : public WeightSource {
 public:
  explicit QuickWeights(uint64_t seed);
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) override;
  absl::Status ReadPiece(const TensorPiece& piece, std::span<float> values) override;

 private:
  std::vector<float> numbers_;
};

class SpeedBench {
 public:
  // The device outlives it.
  static absl::StatusOr<std::unique_ptr<SpeedBench>> Create(GpuDevice& device, const SpeedSettings& settings,
                                                            uint64_t seed);

  GpuDevice& device() { return device_; }
  const SpeedSettings& settings() const { return settings_; }
  uint64_t seed() const { return seed_; }
  absl::Status FillRandom(const Tensor& tensor) { return noise_->Fill(tensor); }

  // A figure of all rounds, in microseconds a run; operands are taken from `allocator`. Errors: the allocator's,
  // `enqueue`'s and the device's.
  absl::StatusOr<Figure> Measure(Allocator& allocator, const Trial& trial);

  // One round of work that the compute queue is given by `enqueue`, run after run: microseconds a run, of each sample.
  absl::StatusOr<std::vector<double>> MeasureRound(absl::FunctionRef<absl::Status(int64_t run)> enqueue);

  // Waits until the work is over. Errors: the device's; DeadlineExceeded: it hangs.
  absl::Status Wait(const Completion& work) { return device_.Wait(work, settings_.deadline_ns); }

 private:
  SpeedBench(GpuDevice& device, const SpeedSettings& settings, uint64_t seed)
      : device_(device), settings_(settings), seed_(seed), allocator_(settings.memory_bytes, device) {}

  absl::StatusOr<Tensor> MakeOperand(Allocator& allocator, const Operand& operand);

  GpuDevice& device_;
  const SpeedSettings settings_;
  const uint64_t seed_;
  Allocator allocator_;
  std::unique_ptr<DeviceNoise> noise_;
};

// Time that work took on the device. REQUIRES: it is over.
inline double TookUs(const Completion& work) { return static_cast<double>(work.ready_ns() - work.begun_ns()) / 1e3; }

}  // namespace geopipe
