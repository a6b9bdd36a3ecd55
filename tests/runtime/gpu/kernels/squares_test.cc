#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

std::vector<double> SumsOf(DType type, const Matrix& values, const std::vector<GpRun>& runs) {
  std::vector<double> sums(runs.size(), NAN);
  std::vector<double> workspace(
      GpSumsOfSquaresWorkspaceBytes(runs.data(), std::ssize(runs)) / static_cast<int64_t>(sizeof(double)), NAN);
  const GpSumsOfSquares args = {.dtype = GpTypeOf(type),
                                .values = values.view().data,
                                .run_count = std::ssize(runs),
                                .runs = runs.data(),
                                .sums = sums.data(),
                                .workspace = workspace.data()};
  REQUIRE(gpu::SumsOfSquares(&args, nullptr) == 0);
  return sums;
}

TEST_CASE("sums of squares on a GPU are fp64's, run by run") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t size = 200'000;
  std::vector<float> values = test.Normal(type, size);
  values[3] = 0x1p100F;  // whose square is beyond fp32
  const Matrix matrix(type, 1, size, values);
  // Empty ones; unaligned ones; one chunk, exactly and nearly; more than one launch has room for.
  std::vector<GpRun> runs = {{5, 5}, {0, 1}, {3, 4}, {7, 7 + 65'536}, {1, 65'536}, {10, 131'083}, {0, size}};
  for (int64_t i = 0; i < 130; ++i) {
    const int64_t begin = test.Integer(0, size);
    runs.push_back({begin, std::min(size, begin + test.Integer(0, 3000))});
  }
  const std::vector<double> sums = SumsOf(type, matrix, runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    double expected = 0;
    for (int64_t j = runs[i].begin; j < runs[i].end; ++j) {
      expected += static_cast<double>(values[j]) * values[j];
    }
    CAPTURE(runs[i].begin, runs[i].end);
    CHECK(std::abs(sums[i] - expected) <= 1e-12 * expected);
  }
  double of_cpu = 0;
  REQUIRE(test.backend().SumOfSquares(matrix.view(), VectorView<double>(&of_cpu, 1)).ok());
  CHECK(std::abs(sums[6] - of_cpu) <= 1e-12 * of_cpu);
  CheckSameInAllOrders([&] { return Results().Add(SumsOf(type, matrix, runs)); });

  // The same elements elsewhere in memory, and in the vector.
  const Matrix shifted(type, 1, size, values, 0, 1);
  CHECK(SumsOf(type, shifted, runs) == sums);
  CHECK(SumsOf(type, Matrix(type, 1, 65'536, {values.begin() + 7, values.begin() + 7 + 65'536}), {{0, 65'536}})[0] ==
        sums[3]);
}

}  // namespace
}  // namespace geopipe
