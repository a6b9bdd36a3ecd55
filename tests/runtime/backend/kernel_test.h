// What the kernel tests share: random operands, a backend, comparison with fp64 results.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "runtime/backend/cpu_backend.h"
#include "tests/support/seed.h"

namespace geopipe {

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

  // [rows, values.size() / rows].
  Tensor TensorOf(const std::vector<float>& values, int64_t rows) {
    Tensor tensor = *Tensor::Create(allocator_, MemoryCategory::kActivations, DType::kFp32,
                                    {rows, static_cast<int64_t>(values.size()) / rows});
    std::ranges::copy(values, tensor.fp32().begin());
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
