// Shared by the kernel tests: random operands, a backend, comparison with fp64 results.
#pragma once

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "runtime/backend/cpu_backend.h"
#include "tests/support/seed.h"

namespace geopipe {

inline float ValueOf(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// The nearest bf16, ties to the even one: whichever of the two neighbours is closer in fp64.
inline BFloat16 NearestBf16(float value) {
  const auto toward_zero = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  if (std::isnan(value)) {
    return {static_cast<uint16_t>(toward_zero | 0x40)};
  }
  if (std::isinf(value)) {
    return {toward_zero};
  }
  const auto away = static_cast<uint16_t>(toward_zero + 1);
  const double low = std::abs(ValueOf({toward_zero}));
  const double high = (away & 0x7fff) == 0x7f80 ? 0x1p128 : std::abs(ValueOf({away}));
  const double below = std::abs(value) - low;
  const double above = high - std::abs(value);
  return {below < above || (below == above && toward_zero % 2 == 0) ? toward_zero : away};
}

// The values rounded to what a matrix of the type can hold.
inline std::vector<float> Held(DType dtype, std::vector<float> values) {
  if (dtype == DType::kBf16) {
    std::ranges::transform(values, values.begin(), [](float value) { return ValueOf(NearestBf16(value)); });
  }
  return values;
}

// Elements of fp32 or bf16 in the host's memory, `apart` more from row to row than there are columns, `shift` from
// where the memory begins; those between the rows are NaN.
class Matrix {
 public:
  // `values`: row after row; none: zeros.
  Matrix(DType dtype, int64_t rows, int64_t columns, const std::vector<float>& values = {}, int64_t apart = 0,
         int64_t shift = 0)
      : bytes_((shift + rows * (columns + apart)) * ByteSize(dtype), std::byte{0xff}),
        view_{.data = bytes_.data() + shift * ByteSize(dtype),
              .rows = rows,
              .columns = columns,
              .stride = columns + apart,
              .dtype = dtype} {
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = values.empty() ? 0 : values[i];
      const BFloat16 rounded = NearestBf16(value);
      std::memcpy(Address(i), dtype == DType::kBf16 ? static_cast<const void*>(&rounded) : &value, ByteSize(dtype));
    }
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  const MatrixView& view() const { return view_; }

  std::vector<float> values() const {
    std::vector<float> values(view_.rows * view_.columns);
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      BFloat16 rounded{};
      std::memcpy(view_.dtype == DType::kBf16 ? static_cast<void*>(&rounded) : &values[i], Address(i),
                  ByteSize(view_.dtype));
      values[i] = view_.dtype == DType::kBf16 ? ValueOf(rounded) : values[i];
    }
    return values;
  }

  // True when nothing was written between the rows.
  bool IntactBetweenRows() const {
    for (int64_t i = 0; i < view_.rows; ++i) {
      const std::byte* row = view_.data + i * view_.stride * ByteSize(view_.dtype);
      if (!std::all_of(row + view_.columns * ByteSize(view_.dtype), row + view_.stride * ByteSize(view_.dtype),
                       [](std::byte byte) { return byte == std::byte{0xff}; })) {
        return false;
      }
    }
    return true;
  }

 private:
  std::byte* Address(int64_t i) const {
    return view_.data + (i / view_.columns * view_.stride + i % view_.columns) * ByteSize(view_.dtype);
  }

  std::vector<std::byte> bytes_;
  MatrixView view_;
};

class KernelTest {
 public:
  KernelTest() : seed_(TestSeed()), random_(seed_), backend_(*CpuBackend::Create(/*threads=*/1, allocator_)) {}

  uint64_t seed() const { return seed_; }
  CpuBackend& backend() { return *backend_; }
  Allocator& allocator() { return allocator_; }

  std::vector<float> Normal(int64_t count, float deviation = 1) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(count);
    for (float& value : values) {
      value = normal(random_);
    }
    return values;
  }

  // Values that a matrix of the type holds.
  std::vector<float> Normal(DType dtype, int64_t count, float deviation = 1) {
    return Held(dtype, Normal(count, deviation));
  }

  // [rows, values.size() / rows].
  Tensor TensorOf(const std::vector<float>& values, int64_t rows, DType dtype = DType::kFp32) {
    Tensor tensor = *Tensor::Create(allocator_, MemoryCategory::kActivations, dtype,
                                    {rows, static_cast<int64_t>(values.size()) / rows});
    const Matrix matrix(dtype, rows, tensor.elements() / rows, values);
    std::memcpy(tensor.data(), matrix.view().data, tensor.bytes());
    return tensor;
  }

  int64_t Integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

 private:
  uint64_t seed_;
  std::mt19937_64 random_;
  Allocator allocator_{int64_t{1} << 30};
  std::unique_ptr<CpuBackend> backend_;
};

inline MatrixView View(std::vector<float>& values, int64_t rows, int64_t columns, int64_t stride = 0) {
  return {.data = reinterpret_cast<std::byte*>(values.data()),
          .rows = rows,
          .columns = columns,
          .stride = stride == 0 ? columns : stride};
}

// The values of a host tensor of fp32 or bf16.
inline std::vector<float> ValuesOf(const Tensor& tensor) {
  if (tensor.dtype() == DType::kFp32) {
    return {tensor.fp32().begin(), tensor.fp32().end()};
  }
  std::vector<float> values;
  for (const BFloat16 value : tensor.bf16()) {
    values.push_back(ValueOf(value));
  }
  return values;
}

// Tolerance for a kernel whose result is rounded once to the type, where fp32 alone would allow for `fp32`.
inline double Tolerance(DType dtype, double fp32) { return fp32 + (dtype == DType::kBf16 ? 0x1p-8 : 0); }

// Largest difference, relative to the largest expected magnitude.
inline double RelativeError(std::span<const float> actual, std::span<const double> expected) {
  REQUIRE(actual.size() == expected.size());
  double difference = 0;
  double magnitude = 1e-30;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) {
      return INFINITY;
    }
    difference = std::max(difference, std::abs(actual[i] - expected[i]));
    magnitude = std::max(magnitude, std::abs(expected[i]));
  }
  return difference / magnitude;
}

}  // namespace geopipe
