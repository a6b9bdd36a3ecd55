#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

TEST_CASE("y += alpha * x on a GPU has the processor's bits") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const int64_t size = GENERATE(1, 7, 1024, 5003);
  const int64_t shift = GENERATE(0, 1);
  const std::vector<float> x = test.Normal(size);
  const std::vector<float> y = test.Normal(size);
  const Matrix from(DType::kFp32, 1, size, x, 0, shift);
  const auto sum = [&] { return Matrix(DType::kFp32, 1, size, y, 3); };
  const auto run = [&](const Matrix& to) {
    const GpAxpy args = {.size = size,
                         .alpha = 0.3F,
                         .x = reinterpret_cast<const float*>(from.view().data),
                         .y = reinterpret_cast<float*>(to.view().data)};
    REQUIRE(gpu::Axpy(&args, nullptr) == 0);
  };
  const Matrix to = sum();
  run(to);
  std::vector<float> of_cpu = y;
  REQUIRE(test.backend().Axpy(0.3F, x, of_cpu).ok());
  CHECK(to.values() == of_cpu);
  CHECK(to.IntactBetweenRows());
  std::vector<Expected> expected(size);
  for (int64_t i = 0; i < size; ++i) {
    expected[i] += y[i];
    expected[i] += static_cast<double>(0.3F) * x[i];
  }
  CHECK(OutsideBound(DType::kFp32, to.values(), expected) == "");
  CheckSameInAllOrders([&] {
    const Matrix again = sum();
    run(again);
    return Results().Add(again);
  });
}

TEST_CASE("conversion on a GPU has the processor's bits, also of infinities and numbers between") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const MatrixShape shape = GENERATE(MatrixShape{1, 1}, MatrixShape{3, 100, 2}, MatrixShape{1, 5000, 0, 1},
                                     MatrixShape{7, 1032, 8}, MatrixShape{2, 13, 3, 1});
  const auto from_type = GENERATE(DType::kFp32, DType::kBf16);
  const auto to_type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.columns, shape.apart, shape.shift);
  std::vector<float> values = test.Normal(from_type, shape.size());
  const std::vector<float> special = {INFINITY, -INFINITY, -0.0F, 0x1.01p0F, 0x1.03p0F, 0x1.fffp127F, 0x1p-140F};
  std::copy_n(special.begin(), std::min(special.size(), values.size() - 1), values.begin() + 1);
  values = Held(from_type, values);
  const Matrix from(from_type, shape.rows, shape.columns, values, shape.apart, shape.shift);
  const auto poisoned = [&] {
    return Matrix(to_type, shape.rows, shape.columns, Poison(shape.size()), shape.apart, shape.shift);
  };
  const auto run = [&](const Matrix& to) {
    const GpConvert args = {.from_type = GpTypeOf(from_type),
                            .to_type = GpTypeOf(to_type),
                            .rows = shape.rows,
                            .columns = shape.columns,
                            .from = from.view().data,
                            .from_stride = from.view().stride,
                            .to = to.view().data,
                            .to_stride = to.view().stride};
    REQUIRE(gpu::Convert(&args, nullptr) == 0);
  };
  const Matrix to = poisoned();
  run(to);
  CHECK(to.values() == Held(to_type, values));
  CHECK(to.IntactBetweenRows());
  const Matrix of_cpu = poisoned();
  REQUIRE(test.backend().Convert(from.view(), of_cpu.view()).ok());
  CHECK(to.values() == of_cpu.values());
  CheckSameInAllOrders([&] {
    const Matrix again = poisoned();
    run(again);
    return Results().Add(again);
  });

  const Matrix nan(from_type, shape.rows, shape.columns, Poison(shape.size()));
  const GpConvert args = {.from_type = GpTypeOf(from_type),
                          .to_type = GpTypeOf(to_type),
                          .rows = shape.rows,
                          .columns = shape.columns,
                          .from = nan.view().data,
                          .from_stride = nan.view().stride,
                          .to = to.view().data,
                          .to_stride = to.view().stride};
  REQUIRE(gpu::Convert(&args, nullptr) == 0);
  CHECK(std::ranges::all_of(to.values(), [](float value) { return std::isnan(value); }));
}

TEST_CASE("rows are added up on a GPU in their order, to the processor's bits") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const MatrixShape shape = GENERATE(MatrixShape{1, 1}, MatrixShape{300, 40, 0, 1}, MatrixShape{128, 100, 4},
                                     MatrixShape{129, 32}, MatrixShape{5, 1000, 1});
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.columns, shape.apart, shape.shift);
  const std::vector<float> v = test.Normal(type, shape.size());
  const std::vector<float> before = test.Normal(shape.columns);
  const Matrix values(type, shape.rows, shape.columns, v, shape.apart, shape.shift);
  const auto run = [&] {
    std::vector<float> sum = before;
    const GpSumRows args = {.dtype = GpTypeOf(type),
                            .rows = shape.rows,
                            .columns = shape.columns,
                            .values = values.view().data,
                            .values_stride = values.view().stride,
                            .sum = sum.data()};
    REQUIRE(gpu::SumRows(&args, nullptr) == 0);
    return sum;
  };
  std::vector<float> of_cpu = before;
  REQUIRE(test.backend().SumRows(values.view(), of_cpu).ok());
  const std::vector<float> sum = run();
  CHECK(sum == of_cpu);
  std::vector<Expected> expected(shape.columns);
  for (int64_t i = 0; i < shape.size(); ++i) {
    expected[i % shape.columns] += v[i];
  }
  for (int64_t j = 0; j < shape.columns; ++j) {
    expected[j] += before[j];
  }
  CHECK(OutsideBound(DType::kFp32, sum, expected) == "");
  CheckSameInAllOrders([&] { return Results().Add(run()); });
}

TEST_CASE("kernels refuse types that they do not compute in, and let matrices of nothing pass") {
  GpConvert args = {};
  args.columns = 5;
  CHECK(gpu::Convert(&args, nullptr) == 0);
  args.rows = 1;
  args.to_type = kGpInt32;
  CHECK(gpu::Convert(&args, nullptr) != 0);
}

}  // namespace
}  // namespace geopipe
