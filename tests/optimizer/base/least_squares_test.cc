#include "optimizer/base/least_squares.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace geopipe {
namespace {

TEST_CASE("least squares finds the coefficients that made the target") {
  const std::vector<std::vector<double>> columns{{1, 2, 3, 4}, {1, 1, 0, 5}, {0, 1, 7, 1}};
  std::vector<double> target(4);
  for (size_t row = 0; row < 4; ++row) {
    target[row] = 2 * columns[0][row] + 0.5 * columns[1][row] + 3 * columns[2][row];
  }
  const std::vector<double> fit = NonNegativeLeastSquares(columns, target);
  CHECK(fit[0] == Approx(2).epsilon(1e-12));
  CHECK(fit[1] == Approx(0.5).epsilon(1e-12));
  CHECK(fit[2] == Approx(3).epsilon(1e-12));
}

TEST_CASE("a coefficient that would be negative is 0, and the others are the best without it") {
  // Unconstrained: y = 3 - x at x = 1, 2, 3.
  const std::vector<double> fit = NonNegativeLeastSquares({{1, 1, 1}, {1, 2, 3}}, std::vector<double>{2, 1, 0});
  CHECK(fit[0] == Approx(1).epsilon(1e-12));
  CHECK(fit[1] == 0);
}

TEST_CASE("columns that depend on earlier ones, are empty or of very different sizes do no harm") {
  const std::vector<double> ones{1, 1, 1};
  const std::vector<double> first = NonNegativeLeastSquares({{2, 2, 2}, {1, 1, 1}, {0, 0, 0}}, ones);
  CHECK(first[0] == Approx(0.5).epsilon(1e-12));
  CHECK(first[1] == 0);
  CHECK(first[2] == 0);
  CHECK(NonNegativeLeastSquares({{}, {}}, {}) == std::vector<double>{0, 0});
  CHECK(NonNegativeLeastSquares({{0, 0}}, std::vector<double>{1, 1}) == std::vector<double>{0});
  const std::vector<double> fit =
      NonNegativeLeastSquares({{1e15, 2e15, 1e15}, {3e-9, 1e-9, 1e-9}}, std::vector<double>{4, 5, 3});
  CHECK(fit[0] == Approx(13.4 / 6 * 1e-15).epsilon(1e-12));
  CHECK(fit[1] == Approx(0.6e9).epsilon(1e-12));
}

TEST_CASE("the geometric mean is that of logarithms, without overflow") {
  CHECK(GeometricMean(std::vector<double>{0.7}) == 0.7);
  CHECK(GeometricMean(std::vector<double>{2, 8}) == Approx(4).epsilon(1e-14));
  CHECK(GeometricMean(std::vector<double>{0.001, 0.1, 10}) == Approx(0.1).epsilon(1e-14));
  CHECK(GeometricMean(std::vector<double>{1e300, 1e300, 1e300}) == Approx(1e300).epsilon(1e-14));
  CHECK(GeometricMean(std::vector<double>{1e-300, 1e300, 1e-300, 1e-300, 1e-300}) == Approx(1e-180).epsilon(1e-12));
  std::vector<double> values;
  double logarithms = 0;
  for (int i = 1; i <= 2'000; ++i) {
    values.push_back(i * 0.37);
    logarithms += std::log(i * 0.37);
  }
  CHECK(GeometricMean(values) == Approx(std::exp(logarithms / 2'000)).epsilon(1e-12));
}

TEST_CASE("the median of an even number is the lower one") {
  CHECK(Median({3}) == 3);
  CHECK(Median({4, 1, 3, 2}) == 2);
  CHECK(Median({5, 1, 3}) == 3);
}

TEST_CASE("the interquartile mean leaves out the lowest and the highest quarter") {
  CHECK(InterquartileMean({7}) == 7);
  CHECK(InterquartileMean({4, 1, 4}) == 3);
  CHECK(InterquartileMean({900, 2, -50, 4}) == 3);
  CHECK(InterquartileMean({1, 1e9, 3, 5, 4, 0, 6, 1e9}) == 4.5);
}

}  // namespace
}  // namespace geopipe
