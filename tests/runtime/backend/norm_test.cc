#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

constexpr double kEps = 1e-5;

double Rms(const std::vector<float>& x, int64_t row, int64_t columns) {
  double squares = 0;
  for (int64_t j = 0; j < columns; ++j) {
    squares += static_cast<double>(x[row * columns + j]) * x[row * columns + j];
  }
  return 1 / std::sqrt(squares / static_cast<double>(columns) + kEps);
}

TEST_CASE("RMSNorm and its gradients agree with fp64 loops") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t rows = GENERATE(1, 9);
  const int64_t columns = GENERATE(1, 8, 13, 64, 100);
  const int64_t apart = GENERATE(0, 3);
  const int64_t size = rows * columns;
  const std::vector<float> x = test.Normal(type, size, 2);
  const std::vector<float> weight = test.Normal(columns);
  const std::vector<float> grad_y = test.Normal(type, size);
  const std::vector<float> residual = test.Normal(type, size);
  std::vector<float> rms(rows);
  std::vector<float> grad_weight(columns, 1.0F);
  const auto matrix = [&](const std::vector<float>& values) { return Matrix(type, rows, columns, values, apart); };
  const Matrix x_matrix = matrix(x);
  const Matrix dy = matrix(grad_y);
  const Matrix y = matrix({});
  const Matrix grad_x = matrix({});
  const Matrix in_place = matrix(residual);
  Backend& backend = test.backend();
  REQUIRE(backend.RmsNorm(x_matrix.view(), weight, kEps, y.view(), rms).ok());
  REQUIRE(backend.RmsNormInputGrad(x_matrix.view(), weight, rms, dy.view(), {}, grad_x.view()).ok());
  REQUIRE(backend.RmsNormInputGrad(x_matrix.view(), weight, rms, dy.view(), in_place.view(), in_place.view()).ok());
  REQUIRE(backend.RmsNormWeightGrad(x_matrix.view(), rms, dy.view(), grad_weight).ok());

  std::vector<double> expected_y(size);
  std::vector<double> expected_dx(size);
  std::vector<double> expected_dx_with_residual(size);
  std::vector<double> expected_dw(columns, 1.0);
  for (int64_t i = 0; i < rows; ++i) {
    const double r = Rms(x, i, columns);
    double dot = 0;
    for (int64_t j = 0; j < columns; ++j) {
      dot += static_cast<double>(weight[j]) * grad_y[i * columns + j] * x[i * columns + j];
    }
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = i * columns + j;
      expected_y[at] = x[at] * r * weight[j];
      expected_dx[at] = r * weight[j] * grad_y[at] - x[at] * r * r * r * dot / static_cast<double>(columns);
      expected_dx_with_residual[at] = expected_dx[at] + residual[at];
      expected_dw[j] += grad_y[at] * x[at] * r;
    }
  }
  CHECK(RelativeError(y.values(), expected_y) < Tolerance(type, 2e-6));
  CHECK(std::abs(rms[0] - Rms(x, 0, columns)) < 1e-6 * rms[0]);
  if (columns > 1) {  // with one column the true gradient is rounding noise
    CHECK(RelativeError(grad_x.values(), expected_dx) < Tolerance(type, 5e-6));
  }
  CHECK(RelativeError(in_place.values(), expected_dx_with_residual) < Tolerance(type, 5e-6));
  CHECK(RelativeError(grad_weight, expected_dw) < 5e-6);
  CHECK((y.IntactBetweenRows() && grad_x.IntactBetweenRows()));

  const Matrix overwritten = matrix(x);
  REQUIRE(backend.RmsNormInputGrad(overwritten.view(), weight, rms, dy.view(), {}, overwritten.view()).ok());
  CHECK(overwritten.values() == grad_x.values());
}

}  // namespace
}  // namespace geopipe
