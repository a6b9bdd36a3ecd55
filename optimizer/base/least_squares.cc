#include "optimizer/base/least_squares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

using Column = std::vector<double>;

// A column counts as independent when at least this share of it remains beside the others.
constexpr double kDependent = 1e-9;
// Share of the squared target by which squared residuals of equally good fits may differ.
constexpr double kEqual = 1e-16;
// Halvings of an interval of length 1.5 that reach the precision of a double.
constexpr int kRootHalvings = 56;

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

void Subtract(double factor, std::span<const double> what, std::span<double> from) {
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] -= factor * what[i];
  }
}

void Divide(double divisor, std::span<double> values) {
  for (double& value : values) {
    value /= divisor;
  }
}

struct Fit {
  std::vector<double> coefficients;  // one per chosen column
  double residual = 0;               // squared
};

// The unconstrained fit, by modified Gram-Schmidt with the target as one more column; nullopt when the columns are
// dependent.
std::optional<Fit> LeastSquares(std::vector<Column> columns, Column target) {
  const size_t count = columns.size();
  std::vector<double> lengths(count);
  for (size_t j = 0; j < count; ++j) {
    lengths[j] = std::sqrt(Dot(columns[j], columns[j]));
    if (!(lengths[j] > 0)) {
      return std::nullopt;
    }
    Divide(lengths[j], columns[j]);
  }
  std::vector<std::vector<double>> upper(count, std::vector<double>(count, 0));
  std::vector<double> projections(count);
  for (size_t j = 0; j < count; ++j) {
    // The columns had length 1, so the length that remains says how independent this one is.
    upper[j][j] = std::sqrt(Dot(columns[j], columns[j]));
    if (upper[j][j] < kDependent) {
      return std::nullopt;
    }
    Divide(upper[j][j], columns[j]);
    for (size_t k = j + 1; k < count; ++k) {
      upper[j][k] = Dot(columns[j], columns[k]);
      Subtract(upper[j][k], columns[j], columns[k]);
    }
    projections[j] = Dot(columns[j], target);
    Subtract(projections[j], columns[j], target);
  }
  Fit fit{.coefficients = std::vector<double>(count), .residual = Dot(target, target)};
  for (size_t j = count; j-- > 0;) {
    double value = projections[j];
    for (size_t k = j + 1; k < count; ++k) {
      value -= upper[j][k] * fit.coefficients[k];
    }
    fit.coefficients[j] = value / upper[j][j];
  }
  for (size_t j = 0; j < count; ++j) {
    fit.coefficients[j] /= lengths[j];
  }
  return fit;
}

// A positive number as fraction * 2^exponent with a fraction in [0.5, 1), so that products neither overflow nor vanish.
struct Scaled {
  double fraction = 0.5;
  int64_t exponent = 1;

  void MultiplyBy(double value) {
    int exponent_of_product = 0;
    int exponent_of_value = 0;
    fraction = std::frexp(fraction * std::frexp(value, &exponent_of_value), &exponent_of_product);
    exponent += exponent_of_product + exponent_of_value;
  }
  bool Below(const Scaled& other) const {
    return std::pair(exponent, fraction) < std::pair(other.exponent, other.fraction);
  }
};

}  // namespace

std::vector<double> NonNegativeLeastSquares(const std::vector<std::vector<double>>& columns,
                                            std::span<const double> target) {
  GP_CHECK(columns.size() <= kMaxFitColumns, "{} columns", columns.size());
  std::vector<double> best(columns.size(), 0);
  double least = Dot(target, target);
  const double margin = least * kEqual;
  for (uint32_t chosen = 1; chosen < uint32_t{1} << columns.size(); ++chosen) {
    std::vector<size_t> which;
    std::vector<Column> some;
    for (size_t j = 0; j < columns.size(); ++j) {
      if ((chosen >> j & 1U) != 0) {
        which.push_back(j);
        some.push_back(columns[j]);
      }
    }
    const std::optional<Fit> fit = LeastSquares(std::move(some), Column(target.begin(), target.end()));
    if (!fit.has_value() || !(fit->residual < least - margin) ||
        std::any_of(fit->coefficients.begin(), fit->coefficients.end(), [](double x) { return !(x >= 0); })) {
      continue;
    }
    least = fit->residual;
    std::fill(best.begin(), best.end(), 0);
    for (size_t i = 0; i < which.size(); ++i) {
      best[which[i]] = fit->coefficients[i];
    }
  }
  return best;
}

double GeometricMean(std::span<const double> values) {
  GP_CHECK(!values.empty());
  const auto count = static_cast<int64_t>(values.size());
  if (count == 1) {
    return values.front();
  }
  Scaled product;
  for (const double value : values) {
    product.MultiplyBy(value);
  }
  // The root's exponent is the quotient; what remains of the product has a root between 0.5 and 2.
  int64_t exponent = product.exponent / count;
  exponent -= product.exponent % count < 0 ? 1 : 0;
  product.exponent -= exponent * count;
  double low = 0.5;
  double high = 2;
  for (int i = 0; i < kRootHalvings; ++i) {
    const double middle = low + (high - low) / 2;
    Scaled power;
    for (int64_t k = 0; k < count; ++k) {
      power.MultiplyBy(middle);
    }
    (power.Below(product) ? low : high) = middle;
  }
  return std::ldexp(high, static_cast<int>(exponent));
}

double Median(std::vector<double> values) {
  GP_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double InterquartileMean(std::vector<double> values) {
  GP_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t quarter = values.size() / 4;
  double sum = 0;
  for (size_t i = quarter; i < values.size() - quarter; ++i) {
    sum += values[i];
  }
  return sum / static_cast<double>(values.size() - 2 * quarter);
}

}  // namespace geopipe
