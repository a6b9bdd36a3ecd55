// Checks of the kernels on vectors: sums, conversions, squares, zeros and AdamW.
#include <algorithm>
#include <cmath>

#include "optimizer/base/status_macros.h"
#include "tests/device/kernel_checks.h"

namespace geopipe {
namespace {

using Place = GpuTrial::Place;

double SquaresOf(Floats values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * value;
  }
  return sum;
}

}  // namespace

absl::Status CheckVectors(KernelChecks& checks, DType dtype) {
  const int64_t rows = checks.Extent(40, 700, 4096);
  const int64_t columns = checks.Extent(300, 9000, 4096);
  const int64_t size = rows * columns;
  checks.Begin(fmt::format("vectors {}, {} x {}", NameOf(dtype), rows, columns));
  GpuTrial& trial = checks.trial();
  const DType other = checks.Draw(2) == 0 ? DType::kFp32 : DType::kBf16;
  const VectorView<float> x = trial.Floats(size);
  const VectorView<float> y = trial.Floats(size);
  const VectorView<float> zeros = trial.Floats(columns);
  const MatrixView source = checks.Normal(dtype, rows, columns);
  const MatrixView converted = checks.Empty(other, rows, columns);
  const VectorView<float> sum = trial.Floats(columns);
  const MatrixView dense = trial.Normal(dtype, rows, columns);
  const VectorView<double> square = trial.Doubles(1);
  const int64_t middle = checks.Draw(size);
  const std::vector<Backend::Run> runs = {{0, middle}, {middle, middle}, {middle, size}, {middle / 2, middle}};
  const VectorView<double> squares = trial.Doubles(std::ssize(runs));
  const std::vector<float> before(sum.data, sum.data + columns);
  GP_RETURN_IF_ERROR(checks.Run(
      [&](Backend& backend, const Place& at) {
        GP_RETURN_IF_ERROR(backend.Axpy(0.3, at(x), at(y)));
        GP_RETURN_IF_ERROR(backend.Zero(at(zeros)));
        GP_RETURN_IF_ERROR(backend.Convert(at(source), at(converted)));
        GP_RETURN_IF_ERROR(backend.SumRows(at(source), at(sum)));
        GP_RETURN_IF_ERROR(backend.SumOfSquares(at(dense), at(square)));
        return backend.SumsOfSquares(at(x), runs, at(squares));
      },
      /*on_processor=*/true));
  checks.CompareBits("y + 0.3 x", GpuTrial::ViewOf(y));
  checks.CompareBits("zeros", GpuTrial::ViewOf(zeros), std::vector<float>(static_cast<size_t>(columns)));
  checks.CompareBits(fmt::format("conversion to {}", NameOf(other)), converted);
  checks.CompareBits("sum of rows", GpuTrial::ViewOf(sum));
  std::vector<Expected> of_rows(before.size());
  const std::vector<float> values = GpuTrial::ValuesOf(source);
  for (size_t i = 0; i < values.size(); ++i) {
    of_rows[i % before.size()] += values[i];
  }
  for (size_t j = 0; j < before.size(); ++j) {
    of_rows[j] += before[j];
  }
  checks.Compare("sum of rows", sum, of_rows);
  checks.Compare("sum of squares", square, {SquaresOf(GpuTrial::ValuesOf(dense))}, 1e-12);
  std::vector<double> of_runs;
  for (const auto& [begin, end] : runs) {
    of_runs.push_back(SquaresOf(Floats(x.data + begin, static_cast<size_t>(end - begin))));
  }
  checks.Compare("sums of squares of runs", squares, of_runs, 1e-12);
  checks.End();
  return absl::OkStatus();
}

absl::Status CheckAdamW(KernelChecks& checks, DType dtype) {
  const int64_t size = checks.Extent(5000, 300'000, 4096 * 4096);
  checks.Begin(fmt::format("adamw {}, {}", NameOf(dtype), size));
  GpuTrial& trial = checks.trial();
  const VectorView<float> gradient = trial.Floats(size);
  AdamWStep step = {.parameter = trial.Floats(size),
                    .gradient = gradient,
                    .first_moment = trial.Floats(size),
                    .second_moment = trial.Floats(size),
                    .learning_rate = 3e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .grad_scale = 0.7,
                    .step = 1 + checks.Draw(1000)};
  std::transform(step.second_moment.data, step.second_moment.data + size, step.second_moment.data,
                 [](float value) { return value * value; });
  const MatrixView weight = checks.Empty(DType::kBf16, 1, size);
  const bool rounds = dtype == DType::kBf16;
  const std::vector<float> p(step.parameter.data, step.parameter.data + size);
  const std::vector<float> m(step.first_moment.data, step.first_moment.data + size);
  const std::vector<float> v(step.second_moment.data, step.second_moment.data + size);
  GP_RETURN_IF_ERROR(checks.Run(
      [&](Backend& backend, const Place& at) {
        AdamWStep there = step;
        there.parameter = at(step.parameter);
        there.gradient = at(gradient);
        there.first_moment = at(step.first_moment);
        there.second_moment = at(step.second_moment);
        if (rounds) {
          there.compute_weight = at(VectorView<BFloat16>(reinterpret_cast<BFloat16*>(weight.data), size));
        }
        return backend.AdamW(there);
      },
      /*on_processor=*/true));
  checks.CompareElements("parameter", GpuTrial::ViewOf(step.parameter), [&](int64_t, int64_t i) {
    const auto at = static_cast<size_t>(i);
    return AdamWOf(step, p[at], gradient.data[i], m[at], v[at]);
  });
  checks.CompareBits("parameter", GpuTrial::ViewOf(step.parameter));
  checks.CompareBits("first moment", GpuTrial::ViewOf(step.first_moment));
  checks.CompareBits("second moment", GpuTrial::ViewOf(step.second_moment));
  if (rounds) {
    checks.CompareBits("weight", weight);
  }
  checks.End();
  return absl::OkStatus();
}

}  // namespace geopipe
