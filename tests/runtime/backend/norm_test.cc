#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

constexpr double kEps = 1e-5;

// Reciprocal root mean square of a group, where `row` counts groups.
double Rms(const std::vector<float>& x, int64_t row, int64_t columns) {
  double squares = 0;
  for (int64_t j = 0; j < columns; ++j) {
    squares += static_cast<double>(x[row * columns + j]) * x[row * columns + j];
  }
  return 1 / std::sqrt(squares / static_cast<double>(columns) + kEps);
}

TEST_CASE("RMSNorm and its gradients agree with fp64 loops, of whole rows and of groups of columns") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t rows = GENERATE(1, 9, 130);  // the last are more than are added up at once
  const int64_t groups = GENERATE(1, 3);
  const int64_t width = GENERATE(1, 8, 13, 64, 100);
  const int64_t apart = GENERATE(0, 3);
  const int64_t size = rows * groups * width;
  const std::vector<float> x = test.Normal(type, size, 2);
  const std::vector<float> weight = test.Normal(width);
  const std::vector<float> grad_y = test.Normal(type, size);
  const std::vector<float> residual = test.Normal(type, size);
  std::vector<float> rms(rows * groups);
  std::vector<float> grad_weight(width, 1.0F);
  std::vector<float> ignored(width);
  const auto matrix = [&](const std::vector<float>& values) {
    return Matrix(type, rows, groups * width, values, apart);
  };
  const Matrix x_matrix = matrix(x);
  const Matrix dy = matrix(grad_y);
  const Matrix y = matrix({});
  const Matrix grad_x = matrix({});
  const Matrix in_place = matrix(residual);
  Backend& backend = test.backend();
  REQUIRE(backend.RmsNorm(x_matrix.view(), weight, kEps, y.view(), rms).ok());
  REQUIRE(backend.RmsNormGrad(x_matrix.view(), weight, rms, dy.view(), {}, grad_x.view(), grad_weight).ok());
  REQUIRE(backend.RmsNormGrad(x_matrix.view(), weight, rms, dy.view(), in_place.view(), in_place.view(), ignored).ok());

  std::vector<double> expected_y(size);
  std::vector<double> expected_dx(size);
  std::vector<double> expected_dx_with_residual(size);
  std::vector<double> expected_dw(width, 1.0);
  for (int64_t i = 0; i < rows * groups; ++i) {
    const double r = Rms(x, i, width);
    double dot = 0;
    for (int64_t j = 0; j < width; ++j) {
      dot += static_cast<double>(weight[j]) * grad_y[i * width + j] * x[i * width + j];
    }
    for (int64_t j = 0; j < width; ++j) {
      const int64_t at = i * width + j;
      expected_y[at] = x[at] * r * weight[j];
      expected_dx[at] = r * weight[j] * grad_y[at] - x[at] * r * r * r * dot / static_cast<double>(width);
      expected_dx_with_residual[at] = expected_dx[at] + residual[at];
      expected_dw[j] += grad_y[at] * x[at] * r;
    }
  }
  CHECK(RelativeError(y.values(), expected_y) < Tolerance(type, 2e-6));
  CHECK(std::abs(rms[0] - Rms(x, 0, width)) < 1e-6 * rms[0]);
  if (width > 1) {  // with one column the true gradient is rounding noise
    CHECK(RelativeError(grad_x.values(), expected_dx) < Tolerance(type, 5e-6));
  }
  CHECK(RelativeError(in_place.values(), expected_dx_with_residual) < Tolerance(type, 5e-6));
  CHECK(RelativeError(grad_weight, expected_dw) < 5e-6);
  CHECK((y.IntactBetweenRows() && grad_x.IntactBetweenRows()));

  const Matrix over_x = matrix(x);
  REQUIRE(backend.RmsNormGrad(over_x.view(), weight, rms, dy.view(), {}, over_x.view(), ignored).ok());
  CHECK(over_x.values() == grad_x.values());
  const Matrix over_dy = matrix(grad_y);
  REQUIRE(backend.RmsNormGrad(x_matrix.view(), weight, rms, over_dy.view(), {}, over_dy.view(), ignored).ok());
  CHECK(over_dy.values() == grad_x.values());
}

}  // namespace
}  // namespace geopipe
