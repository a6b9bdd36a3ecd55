#include "tests/support/gpu_trial.h"

#include <algorithm>
#include <cstring>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "tests/support/all_processors.h"
#include "tests/support/bf16.h"
#include "tests/support/quick_numbers.h"

namespace geopipe {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPart = 1 << 16;                   // elements that one sequence of numbers fills, whoever draws them
constexpr int64_t kDeviceBytes = int64_t{64} << 30;  // a limit that nothing reaches

size_t IndexOf(const MatrixView& view, int64_t i) {
  return static_cast<size_t>(i / view.columns * view.stride + i % view.columns);
}

template <class T>
T* As(const MatrixView& view) {
  return reinterpret_cast<T*>(view.data);
}

float Load(const MatrixView& view, int64_t i) {
  return view.dtype == DType::kFp32 ? As<float>(view)[IndexOf(view, i)]
                                    : ValueOfBf16(As<uint16_t>(view)[IndexOf(view, i)]);
}

void Store(const MatrixView& view, int64_t i, float value) {
  if (view.dtype == DType::kFp32) {
    As<float>(view)[IndexOf(view, i)] = value;
  } else {
    As<uint16_t>(view)[IndexOf(view, i)] = Bf16Of(value);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuTrial>> GpuTrial::Create(GpuDevice& device, int64_t bytes, uint64_t seed,
                                                           int cpu_threads) {
  std::unique_ptr<GpuTrial> trial(new GpuTrial(device, seed));
  trial->host_.assign(static_cast<size_t>(bytes), std::byte{0xFF});
  trial->allocator_ = std::make_unique<Allocator>(kDeviceBytes, device);
  GP_ASSIGN_OR_RETURN(trial->block_, trial->allocator_->Allocate(bytes, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(trial->copy_, trial->allocator_->staging().Allocate(bytes, MemoryCategory::kTransport));
  GP_ASSIGN_OR_RETURN(trial->cpu_, CpuBackend::Create(cpu_threads, trial->cpu_memory_));
  trial->gpu_ = std::make_unique<GpuBackend>(device, *trial->allocator_);
  return trial;
}

void GpuTrial::Clear() {
  std::fill_n(host_.begin(), used_, std::byte{0xFF});
  used_ = 0;
}

MatrixView GpuTrial::Empty(DType dtype, int64_t rows, int64_t columns, int64_t apart, int64_t shift) {
  const int64_t stride = columns + apart;
  used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
  const MatrixView view = {.data = host_.data() + used_ + shift * ByteSize(dtype),
                           .rows = rows,
                           .columns = columns,
                           .stride = stride,
                           .dtype = dtype};
  used_ += (shift + rows * stride) * ByteSize(dtype);
  GP_CHECK(used_ <= std::ssize(host_), "operands of {} bytes in {}", used_, host_.size());
  return view;
}

MatrixView GpuTrial::Normal(DType dtype, int64_t rows, int64_t columns, int64_t apart, int64_t shift, float deviation) {
  const MatrixView view = Empty(dtype, rows, columns, apart, shift);
  const uint64_t seed = random_();
  const int64_t count = rows * columns;
  OnAllProcessors((count + kPart - 1) / kPart, /*grain=*/1, [&](int64_t part) {
    QuickNumbers numbers(seed ^ (static_cast<uint64_t>(part) << 40));
    for (int64_t i = part * kPart; i < std::min(count, (part + 1) * kPart); ++i) {
      Store(view, i, deviation * numbers.Normal());
    }
  });
  return view;
}

VectorView<float> GpuTrial::Floats(int64_t size) { return {As<float>(Normal(DType::kFp32, 1, size)), size}; }

VectorView<float> GpuTrial::EmptyFloats(int64_t size) { return {As<float>(Empty(DType::kFp32, 1, size)), size}; }

VectorView<double> GpuTrial::Doubles(int64_t size) {
  const VectorView<double> view = {As<double>(Empty(DType::kFp64, 1, size)), size};
  std::fill_n(view.data, size, 0.25);
  return view;
}

VectorView<int32_t> GpuTrial::Integers(int64_t size, const std::function<int64_t(int64_t)>& value) {
  const VectorView<int32_t> view = {As<int32_t>(Empty(DType::kInt32, 1, size)), size};
  for (int64_t i = 0; i < size; ++i) {
    view.data[i] = static_cast<int32_t>(value(i));
  }
  return view;
}

absl::Status GpuTrial::RunOnce(const Call& call) {
  const auto used = static_cast<size_t>(used_);
  std::memcpy(copy_.data(), before_.data(), used);
  GP_RETURN_IF_ERROR(device_.Copy(copy_.data(), block_.data(), used_, Queue::kCompute));
  const Place place(
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(block_.data()) - reinterpret_cast<uintptr_t>(host_.data())));
  GP_RETURN_IF_ERROR(call(*gpu_, place));
  GP_RETURN_IF_ERROR(device_.Copy(block_.data(), copy_.data(), used_, Queue::kCompute));
  return device_.WaitIdle(DeviceDeadlineNs());
}

absl::StatusOr<bool> GpuTrial::RunOnGpu(const Call& call) {
  const auto used = static_cast<size_t>(used_);
  before_.assign(host_.data(), host_.data() + used);
  GP_RETURN_IF_ERROR(RunOnce(call));
  on_gpu_.assign(copy_.data(), copy_.data() + used);
  GP_RETURN_IF_ERROR(RunOnce(call));
  return std::memcmp(copy_.data(), on_gpu_.data(), used) == 0;
}

std::vector<float> GpuTrial::ValuesOf(const MatrixView& view) {
  std::vector<float> values(static_cast<size_t>(view.rows * view.columns));
  OnAllProcessors(std::ssize(values), kPart, [&](int64_t i) { values[static_cast<size_t>(i)] = Load(view, i); });
  return values;
}

std::vector<float> GpuTrial::ResultOf(const MatrixView& view) {
  MatrixView there = view;
  there.data = on_gpu_.data() + OffsetOf(view.data);
  Changed(view);
  return ValuesOf(there);
}

std::vector<double> GpuTrial::ResultOf(VectorView<double> view) {
  std::vector<double> values(static_cast<size_t>(view.size));
  std::memcpy(values.data(), on_gpu_.data() + OffsetOf(view.data), values.size() * sizeof(double));
  Changed({.data = reinterpret_cast<std::byte*>(view.data),
           .rows = 1,
           .columns = view.size,
           .stride = view.size,
           .dtype = DType::kFp64});
  return values;
}

MatrixView GpuTrial::ViewOf(VectorView<float> view) {
  return {.data = reinterpret_cast<std::byte*>(view.data), .rows = 1, .columns = view.size, .stride = view.size};
}

void GpuTrial::Changed(const MatrixView& view) {
  for (int64_t i = 0; i < view.rows; ++i) {
    const size_t at = OffsetOf(view.data + i * view.stride * ByteSize(view.dtype));
    std::memcpy(before_.data() + at, on_gpu_.data() + at, static_cast<size_t>(view.columns * ByteSize(view.dtype)));
  }
}

bool GpuTrial::IsRestUntouched() const { return std::memcmp(before_.data(), on_gpu_.data(), on_gpu_.size()) == 0; }

}  // namespace geopipe
