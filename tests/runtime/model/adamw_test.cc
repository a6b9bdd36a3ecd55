#include "runtime/model/adamw.h"

#include <catch2/catch.hpp>

#include "runtime/backend/cpu_backend.h"

namespace geopipe {
namespace {

TEST_CASE("the learning rate warms up, then follows the cosine to its minimum") {
  TrainingSpec training{.iterations = 12, .learning_rate = 1.0, .warmup_iterations = 4, .min_learning_rate = 0.2};
  CHECK(LearningRate(training, 0) == 0.25);
  CHECK(LearningRate(training, 3) == 1.0);
  CHECK(LearningRate(training, 4) == 1.0);
  CHECK(LearningRate(training, 6) == Approx(0.2 + 0.4 * (1 + std::sqrt(0.5))));
  CHECK(LearningRate(training, 8) == Approx(0.6));
  CHECK(LearningRate(training, 11) == Approx(0.2 + 0.4 * (1 - 0.9238795325112867)));
  training.min_learning_rate.reset();
  CHECK(LearningRate(training, 0) == 0.25);
  CHECK(LearningRate(training, 9) == 1.0);
  training.warmup_iterations = 0;
  CHECK(LearningRate(training, 0) == 1.0);
}

TEST_CASE("clipping scales by clip / (norm + 1e-6), never up") {
  CHECK(ClipScale(1.0, 0.5) == 1.0);
  CHECK(ClipScale(1.0, 4.0) == 1.0 / 4.000001);
  CHECK(ClipScale(0.5, 0.5) == 0.5 / 0.500001);
}

TEST_CASE("weight decay touches matrices alone") {
  Allocator allocator(1 << 20);
  const auto backend = *CpuBackend::Create(1, allocator);
  TrainingSpec training;
  training.iterations = 10;
  training.learning_rate = 0.5;
  training.weight_decay = 0.1;
  const bool matrix = GENERATE(false, true);
  const std::vector<int64_t> shape = matrix ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{4};
  Parameter parameter;
  parameter.spec = {.name = "p", .shape = shape};
  parameter.value = *Tensor::Create(allocator, MemoryCategory::kWeights, DType::kFp32, shape);
  parameter.gradient = *Tensor::Zeros(allocator, MemoryCategory::kGradients, DType::kFp32, shape);
  parameter.first_moment = *Tensor::Zeros(allocator, MemoryCategory::kOptimizer, DType::kFp32, shape);
  parameter.second_moment = *Tensor::Zeros(allocator, MemoryCategory::kOptimizer, DType::kFp32, shape);
  std::ranges::fill(parameter.value.fp32(), 2.0F);
  REQUIRE(UpdateParameter(training, 0, std::nullopt, *backend, parameter).ok());
  CHECK(parameter.value.fp32()[0] == Approx(matrix ? 2.0 * (1 - 0.5 * 0.1) : 2.0));
}

}  // namespace
}  // namespace geopipe
