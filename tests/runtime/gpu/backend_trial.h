// A call of a backend on the emulated GPU against the same call on the processor. Operands lie in one block of host
// memory; the GPU works on a copy of it.
#pragma once

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/backend/cpu_backend.h"
#include "runtime/gpu/gpu_backend.h"
#include "runtime/gpu/gpu_device.h"
#include "tests/support/gpu_emulator/emulated_gpu.h"
#include "tests/support/seed.h"

namespace geopipe {

class BackendTrial {
 public:
  explicit BackendTrial(int64_t bytes = int64_t{1} << 20)
      : seed_(TestSeed()),
        random_(seed_),
        emulated_("seed=" + std::to_string(seed_)),
        device_(*GpuDevice::Open(EmulatedGpuLibrary(), 0)),
        host_(static_cast<size_t>(bytes), std::byte{0xFF}),
        allocator_(std::make_unique<Allocator>(int64_t{1} << 30, *device_)),
        block_(*allocator_->Allocate(bytes, MemoryCategory::kActivations)),
        copy_(*allocator_->staging().Allocate(bytes, MemoryCategory::kTransport)),
        cpu_(*CpuBackend::Create(/*threads=*/1, cpu_memory_)),
        gpu_(std::make_unique<GpuBackend>(*device_, *allocator_)) {
    UNSCOPED_INFO("GEOPIPE_TEST_SEED=" << seed_);
  }

  GpuBackend& gpu() { return *gpu_; }
  GpuDevice& device() { return *device_; }
  Allocator& allocator() { return *allocator_; }
  GpEmulatorCounters counters() const { return emulated_.counters(); }

  // A matrix, `apart` elements more from row to row than there are columns, `shift` from where memory is aligned.
  MatrixView Empty(DType dtype, int64_t rows, int64_t columns, int64_t apart = 0, int64_t shift = 0) {
    const int64_t stride = columns + apart;
    used_ = (used_ + 255) / 256 * 256;
    MatrixView view = {.data = host_.data() + used_ + shift * ByteSize(dtype),
                       .rows = rows,
                       .columns = columns,
                       .stride = stride,
                       .dtype = dtype};
    used_ += (shift + rows * stride) * ByteSize(dtype);
    REQUIRE(used_ <= std::ssize(host_));
    return view;
  }
  // Drawn from a normal distribution.
  MatrixView Normal(DType dtype, int64_t rows, int64_t columns, int64_t apart = 0, int64_t shift = 0) {
    const MatrixView view = Empty(dtype, rows, columns, apart, shift);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * columns; ++i) {
      Store(view, i, normal(random_));
    }
    return view;
  }
  VectorView<float> Floats(int64_t size) { return {As<float>(Normal(DType::kFp32, 1, size)), size}; }
  VectorView<float> EmptyFloats(int64_t size) { return {As<float>(Empty(DType::kFp32, 1, size)), size}; }
  VectorView<double> Doubles(int64_t size) {
    const VectorView<double> view = {As<double>(Empty(DType::kFp64, 1, size)), size};
    std::fill_n(view.data, size, 0.25);
    return view;
  }
  VectorView<int32_t> Integers(int64_t size, const std::function<int64_t(int64_t)>& value) {
    const VectorView<int32_t> view = {As<int32_t>(Empty(DType::kInt32, 1, size)), size};
    for (int64_t i = 0; i < size; ++i) {
      view.data[i] = static_cast<int32_t>(value(i));
    }
    return view;
  }
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

  // Makes the call on both; on the GPU twice, which has to give the same bits.
  void Run(const Call& call) {
    before_ = host_;
    on_gpu_ = OnGpu(call);
    REQUIRE(OnGpu(call) == on_gpu_);
    REQUIRE(call(*cpu_, Place(0)).ok());
  }

  // Largest difference from the processor's result, relative to its largest magnitude, or to 0.25 where terms cancel.
  double Error(const MatrixView& view) {
    double difference = 0;
    double magnitude = 0.25;
    const MatrixView there = OfGpu(view);
    for (int64_t i = 0; i < view.rows * view.columns; ++i) {
      const double expected = Load(view, i);
      const double actual = Load(there, i);
      if (!std::isfinite(actual)) {
        return INFINITY;
      }
      difference = std::max(difference, std::abs(actual - expected));
      magnitude = std::max(magnitude, std::abs(expected));
    }
    Changed(view);
    return difference / magnitude;
  }
  double Error(VectorView<float> view) {
    return Error(MatrixView{
        .data = reinterpret_cast<std::byte*>(view.data), .rows = 1, .columns = view.size, .stride = view.size});
  }
  double Error(VectorView<double> view) {
    double error = 0;
    for (int64_t i = 0; i < view.size; ++i) {
      double there = 0;
      std::memcpy(&there, on_gpu_.data() + OffsetOf(view.data + i), sizeof(there));
      error = std::max(error, std::abs(there - view.data[i]) / std::max(1.0, std::abs(view.data[i])));
      error = std::isfinite(there) ? error : INFINITY;
    }
    Changed({.data = reinterpret_cast<std::byte*>(view.data),
             .rows = 1,
             .columns = view.size,
             .stride = view.size,
             .dtype = DType::kFp64});
    return error;
  }
  // Leaves a result out.
  void Changed(const MatrixView& view) {
    for (int64_t i = 0; i < view.rows; ++i) {
      const size_t at = OffsetOf(view.data + i * view.stride * ByteSize(view.dtype));
      std::memcpy(before_.data() + at, on_gpu_.data() + at, static_cast<size_t>(view.columns * ByteSize(view.dtype)));
    }
  }
  // True when the GPU has written nothing but the results above.
  bool IsRestUntouched() const { return before_ == on_gpu_; }

 private:
  template <class T>
  static T* As(const MatrixView& view) {
    return reinterpret_cast<T*>(view.data);
  }
  static int64_t IndexOf(const MatrixView& view, int64_t i) {
    return i / view.columns * view.stride + i % view.columns;
  }
  static float Load(const MatrixView& view, int64_t i) {
    if (view.dtype == DType::kFp32) {
      return As<float>(view)[IndexOf(view, i)];
    }
    return std::bit_cast<float>(uint32_t{As<uint16_t>(view)[IndexOf(view, i)]} << 16);
  }
  static void Store(const MatrixView& view, int64_t i, float value) {
    if (view.dtype == DType::kFp32) {
      As<float>(view)[IndexOf(view, i)] = value;
    } else {
      As<uint16_t>(view)[IndexOf(view, i)] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    }
  }
  template <class T>
  size_t OffsetOf(const T* data) const {
    return static_cast<size_t>(reinterpret_cast<const std::byte*>(data) - host_.data());
  }
  MatrixView OfGpu(MatrixView view) {
    view.data = on_gpu_.data() + OffsetOf(view.data);
    return view;
  }

  std::vector<std::byte> OnGpu(const Call& call) {
    std::ranges::copy(before_, copy_.data());
    REQUIRE(device_->Copy(copy_.data(), block_.data(), block_.size(), Queue::kCompute).ok());
    const Place place(
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(block_.data()) - reinterpret_cast<uintptr_t>(host_.data())));
    const absl::Status status = call(*gpu_, place);
    INFO(status);
    REQUIRE(status.ok());
    REQUIRE(device_->Copy(block_.data(), copy_.data(), block_.size(), Queue::kCompute).ok());
    const absl::Status done = device_->WaitIdle(DeviceDeadlineNs());
    INFO(done);
    REQUIRE(done.ok());
    return {copy_.data(), copy_.data() + copy_.size()};
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  EmulatedGpu emulated_;
  std::unique_ptr<GpuDevice> device_;
  std::vector<std::byte> host_;
  int64_t used_ = 0;
  std::vector<std::byte> before_;
  std::vector<std::byte> on_gpu_;
  std::unique_ptr<Allocator> allocator_;
  Buffer block_;
  Buffer copy_;
  Allocator cpu_memory_{int64_t{1} << 30};
  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<GpuBackend> gpu_;
};

// Results that both round once: fp32 sums differ in their order, bf16 by a last place.
inline double TrialTolerance(DType dtype) { return dtype == DType::kFp32 ? 1e-5 : 0x1p-7 + 1e-5; }

}  // namespace geopipe
