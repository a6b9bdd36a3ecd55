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
  const int64_t rows = GENERATE(1, 9);
  const int64_t columns = GENERATE(1, 8, 13, 64, 100);
  const int64_t size = rows * columns;
  std::vector<float> x = test.Normal(size, 2);
  std::vector<float> weight = test.Normal(columns);
  std::vector<float> grad_y = test.Normal(size);
  std::vector<float> residual = test.Normal(size);
  std::vector<float> y(size);
  std::vector<float> rms(rows);
  std::vector<float> grad_x(size);
  std::vector<float> grad_x_with_residual = residual;
  std::vector<float> grad_weight(columns, 1.0F);
  Backend& backend = test.backend();
  const MatrixView x_view = View(x, rows, columns);
  const MatrixView dy = View(grad_y, rows, columns);
  const MatrixView in_place = View(grad_x_with_residual, rows, columns);
  REQUIRE(backend.RmsNorm(x_view, weight, kEps, View(y, rows, columns), rms).ok());
  REQUIRE(backend.RmsNormInputGrad(x_view, weight, rms, dy, {}, View(grad_x, rows, columns)).ok());
  REQUIRE(backend.RmsNormInputGrad(x_view, weight, rms, dy, in_place, in_place).ok());
  REQUIRE(backend.RmsNormWeightGrad(x_view, rms, dy, grad_weight).ok());

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
  CHECK(RelativeError(y, expected_y) < 2e-6);
  CHECK(std::abs(rms[0] - Rms(x, 0, columns)) < 1e-6 * rms[0]);
  if (columns > 1) {  // with one column the true gradient is rounding noise
    CHECK(RelativeError(grad_x, expected_dx) < 5e-6);
  }
  CHECK(RelativeError(grad_x_with_residual, expected_dx_with_residual) < 5e-6);
  CHECK(RelativeError(grad_weight, expected_dw) < 5e-6);

  std::vector<float> x_in_place = x;
  const MatrixView overwritten = View(x_in_place, rows, columns);
  REQUIRE(backend.RmsNormInputGrad(overwritten, weight, rms, dy, {}, overwritten).ok());
  CHECK(x_in_place == grad_x);
}

}  // namespace
}  // namespace geopipe
