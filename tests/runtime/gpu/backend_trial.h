// A call of a backend on the emulated GPU against the same call on the processor.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/gpu_trial.h"
#include "tests/support/required.h"
#include "tests/support/seed.h"

namespace geopipe {

class BackendTrial {
 public:
  using Place = GpuTrial::Place;

  explicit BackendTrial(int64_t bytes = int64_t{1} << 20)
      : seed_(TestSeed()),
        emulated_("seed=" + std::to_string(seed_)),
        device_(*GpuDevice::Open(EmulatedGpuLibrary(), 0)),
        trial_(Required(GpuTrial::Create(*device_, bytes, seed_, /*cpu_threads=*/1))) {
    UNSCOPED_INFO("GEOPIPE_TEST_SEED=" << seed_);
  }

  GpuTrial* operator->() { return trial_.get(); }
  GpEmulatorCounters counters() const { return emulated_.counters(); }

  // Makes the call on both; on the GPU twice, which has to give the same bits.
  void Run(const GpuTrial::Call& call) {
    REQUIRE(Required(trial_->RunOnGpu(call)));
    REQUIRE(trial_->RunOnCpu(call).ok());
  }

  // Largest difference from the processor's result, relative to its largest magnitude, or to 0.25 where terms cancel.
  double Error(const MatrixView& view) { return Largest(trial_->ResultOf(view), GpuTrial::ValuesOf(view), 0.25); }
  double Error(VectorView<float> view) { return Error(GpuTrial::ViewOf(view)); }
  double Error(VectorView<double> view) {
    return Largest(trial_->ResultOf(view), std::vector<double>(view.data, view.data + view.size), 1);
  }

 private:
  template <class T>
  static double Largest(const std::vector<T>& actual, const std::vector<T>& expected, double magnitude) {
    double difference = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (!std::isfinite(actual[i])) {
        return INFINITY;
      }
      difference = std::max<double>(difference, std::abs(actual[i] - expected[i]));
      magnitude = std::max<double>(magnitude, std::abs(expected[i]));
    }
    return difference / magnitude;
  }

  const uint64_t seed_;
  EmulatedGpu emulated_;
  std::unique_ptr<GpuDevice> device_;
  std::unique_ptr<GpuTrial> trial_;
};

// Results that both round once: fp32 sums differ in their order, bf16 by a last place.
inline double TrialTolerance(DType dtype) { return dtype == DType::kFp32 ? 1e-5 : 0x1p-7 + 1e-5; }

}  // namespace geopipe
