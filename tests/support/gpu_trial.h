// A call of a backend on a GPU, and the same on the processor. Operands lie in one block of host memory; the GPU works
// on a copy of it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "runtime/backend/cpu_backend.h"
#include "runtime/gpu/gpu_backend.h"
#include "runtime/gpu/gpu_device.h"

namespace geopipe {

// One thread.
class GpuTrial {
 public:
  // Memory for operands of so many bytes. `device` outlives the trial. Errors: the allocators'.
  static absl::StatusOr<std::unique_ptr<GpuTrial>> Create(GpuDevice& device, int64_t bytes, uint64_t seed,
                                                          int cpu_threads);

  GpuDevice& device() { return device_; }
  GpuBackend& gpu() { return *gpu_; }
  Allocator& allocator() { return *allocator_; }
  CpuBackend& cpu() { return *cpu_; }

  // Forgets all operands: memory is NaNs again.
  void Clear();

  // A matrix, `apart` elements more from row to row than there are columns, `shift` from where memory is aligned.
  // REQUIRES: there is memory for it.
  MatrixView Empty(DType dtype, int64_t rows, int64_t columns, int64_t apart = 0, int64_t shift = 0);
  // Numbers about as a normal distribution has them.
  MatrixView Normal(DType dtype, int64_t rows, int64_t columns, int64_t apart = 0, int64_t shift = 0,
                    float deviation = 1);
  VectorView<float> Floats(int64_t size);
  VectorView<float> EmptyFloats(int64_t size);
  VectorView<double> Doubles(int64_t size);  // 0.25
  VectorView<int32_t> Integers(int64_t size, const std::function<int64_t(int64_t)>& value);
  int64_t Draw(int64_t below) { return std::uniform_int_distribution<int64_t>(0, below - 1)(random_); }

  // The place of a call's operands: the memory itself, or the GPU's copy of it.
  class Place {
   public:
    explicit Place(int64_t distance) : distance_(distance) {}
    MatrixView operator()(MatrixView view) const {
      view.data = view.data == nullptr ? nullptr : Moved(view.data);
      return view;
    }
    template <class T>
    VectorView<T> operator()(VectorView<T> view) const {
      view.data = view.data == nullptr ? nullptr : Moved(view.data);
      return view;
    }

   private:
    template <class T>
    T* Moved(T* data) const {
      return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(distance_));
    }
    int64_t distance_;
  };
  using Call = std::function<absl::Status(Backend&, const Place&)>;

  // Makes the call on the GPU twice, and tells whether both have given the same bits. Errors: the call's, the device's.
  absl::StatusOr<bool> RunOnGpu(const Call& call);
  // Makes it on the processor, whose results take the operands' place.
  absl::Status RunOnCpu(const Call& call) { return call(*cpu_, Place(0)); }

  // Elements as they are in the host's memory, row after row.
  static std::vector<float> ValuesOf(const MatrixView& view);
  // Elements of a result on the GPU, which may then have changed.
  std::vector<float> ResultOf(const MatrixView& view);
  std::vector<double> ResultOf(VectorView<double> view);
  static MatrixView ViewOf(VectorView<float> view);
  // Lets a result have changed.
  void Changed(const MatrixView& view);
  // True when the GPU has written nothing but the results above.
  bool IsRestUntouched() const;

 private:
  GpuTrial(GpuDevice& device, uint64_t seed) : device_(device), random_(seed) {}

  absl::Status RunOnce(const Call& call);
  size_t OffsetOf(const void* data) const {
    return static_cast<size_t>(static_cast<const std::byte*>(data) - host_.data());
  }

  GpuDevice& device_;
  std::mt19937_64 random_;
  std::vector<std::byte> host_;
  int64_t used_ = 0;
  std::vector<std::byte> before_;
  std::vector<std::byte> on_gpu_;
  std::unique_ptr<Allocator> allocator_;
  Buffer block_;
  Buffer copy_;
  Allocator cpu_memory_{int64_t{1} << 40};
  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<GpuBackend> gpu_;
};

}  // namespace geopipe
