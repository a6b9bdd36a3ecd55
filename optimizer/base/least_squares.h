// Small linear least squares, the same bits on every machine: additions, multiplications, divisions and square roots
// alone, in a fixed order.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace geopipe {

// Most columns that NonNegativeLeastSquares takes: it tries every subset of them.
inline constexpr size_t kMaxFitColumns = 8;

// The coefficients x >= 0, one per column, that minimise |sum of x_j * columns_j - target|². With non-negativity the
// best x is an unconstrained solution on some set of linearly independent columns; there are few, so all are tried.
// Among equally good fits (to a relative error of 1e-8 in the root mean square) the one with the earlier columns stays.
// All 0 without rows. REQUIRES: at most kMaxFitColumns columns, each as long as the target; all values finite.
std::vector<double> NonNegativeLeastSquares(const std::vector<std::vector<double>>& columns,
                                            std::span<const double> target);

// The geometric mean. REQUIRES: at least one value; all positive and finite.
double GeometricMean(std::span<const double> values);

// The middle value; of an even number of values the lower of the two. REQUIRES: at least one value.
double Median(std::vector<double> values);

// The mean of the values without the lowest and the highest quarter of them. REQUIRES: at least one value.
double InterquartileMean(std::vector<double> values);

}  // namespace geopipe
