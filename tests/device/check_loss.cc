#include <cmath>
#include <numeric>

#include "optimizer/base/status_macros.h"
#include "tests/device/kernel_checks.h"
#include "tests/support/all_processors.h"

namespace geopipe {
namespace {

using Place = GpuTrial::Place;

constexpr double kScale = 0.25;
constexpr double kLossBefore = 0.25;  // GpuTrial::Doubles'

// The loss of each row, in fp64.
std::vector<double> LossesOf(const std::vector<float>& logits, VectorView<int32_t> targets) {
  const auto classes = static_cast<int64_t>(logits.size()) / targets.size;
  std::vector<double> losses(static_cast<size_t>(targets.size));
  OnAllProcessors(targets.size, /*grain=*/16, [&](int64_t i) {
    losses[static_cast<size_t>(i)] =
        LossRowOf(Floats(logits).subspan(static_cast<size_t>(i * classes), static_cast<size_t>(classes)),
                  targets.data[i], kScale)
            .loss;
  });
  return losses;
}

// The gradient's own memory, or the logits'.
MatrixView GradientOf(KernelChecks& checks, const MatrixView& logits, DType dtype, bool in_place) {
  if (!in_place) {
    return checks.Empty(dtype, logits.rows, logits.columns);
  }
  MatrixView gradient = logits;
  gradient.dtype = dtype;
  gradient.stride = logits.stride * ByteSize(DType::kFp32) / ByteSize(dtype);
  return gradient;
}

void CompareGradient(KernelChecks& checks, const MatrixView& gradient, const std::vector<float>& logits,
                     const VectorView<int32_t>& targets) {
  const auto classes = static_cast<size_t>(gradient.columns);
  checks.CompareRows("gradient", gradient, [&](int64_t i) {
    const auto row = Floats(logits).subspan(static_cast<size_t>(i) * classes, classes);
    return LossRowOf(row, targets.data[i], kScale).gradient;
  });
}

}  // namespace

absl::Status CheckLoss(KernelChecks& checks, DType dtype) {
  const int64_t rows = checks.Extent(40, 600, 4096);
  const int64_t classes = checks.Extent(1000, 9000, 32000);
  const bool in_place = checks.Draw(2) == 0;
  checks.Begin(
      fmt::format("loss {}, {} x {}{}", NameOf(dtype), rows, classes, in_place ? ", in the logits' memory" : ""));
  GpuTrial& trial = checks.trial();
  const MatrixView logits = checks.Normal(DType::kFp32, rows, classes, 3);
  const VectorView<int32_t> targets = trial.Integers(rows, [&](int64_t) { return checks.Draw(classes); });
  const MatrixView gradient = GradientOf(checks, logits, dtype, in_place);
  const VectorView<double> loss = trial.Doubles(1);
  const std::vector<float> values = GpuTrial::ValuesOf(logits);
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& backend, const Place& at) {
    return backend.CrossEntropy(at(logits), at(targets), kScale, at(gradient), at(loss));
  }));
  const std::vector<double> losses = LossesOf(values, targets);
  checks.Compare("loss", loss, {std::accumulate(losses.begin(), losses.end(), kLossBefore)}, 1e-5);
  CompareGradient(checks, gradient, values, targets);
  trial.Changed(logits);
  checks.End();
  return absl::OkStatus();
}

absl::Status CheckSlicedLoss(KernelChecks& checks, DType dtype) {
  const int64_t rows = checks.Extent(40, 600, 4096);
  const int64_t classes = 1 + checks.Extent(600, 9000, 31999);
  const int64_t first = 1 + checks.Draw(classes - 1);  // of the second slice
  checks.Begin(fmt::format("loss {}, {} x {}, sliced at {}", NameOf(dtype), rows, classes, first));
  GpuTrial& trial = checks.trial();
  const MatrixView logits = checks.Normal(DType::kFp32, rows, classes, 3);
  const VectorView<int32_t> targets = trial.Integers(rows, [&](int64_t) { return checks.Draw(classes); });
  const MatrixView gradient = checks.Empty(dtype, rows, classes);
  const VectorView<double> losses = trial.Doubles(2);
  // The row's greatest logit, and sums of the slices: what ranks would have reduced, from fp64.
  const std::vector<float> values = GpuTrial::ValuesOf(logits);
  const VectorView<float> max = trial.EmptyFloats(rows);
  const VectorView<float> all_sums = trial.EmptyFloats(2 * rows);
  const VectorView<float> maxima = trial.EmptyFloats(2 * rows);  // results, of both slices
  const VectorView<float> sums = trial.EmptyFloats(4 * rows);
  std::vector<Expected> expected_maxima(static_cast<size_t>(2 * rows));
  std::vector<Expected> expected_sums(static_cast<size_t>(4 * rows));
  OnAllProcessors(rows, /*grain=*/16, [&](int64_t i) {
    const float* row = values.data() + i * classes;
    max.data[i] = *std::max_element(row, row + classes);
    for (const int64_t slice : {0, 1}) {
      const int64_t begin = slice == 0 ? 0 : first;
      const int64_t end = slice == 0 ? first : classes;
      expected_maxima[static_cast<size_t>(slice * rows + i)].value = *std::max_element(row + begin, row + end);
      for (int64_t j = begin; j < end; ++j) {
        expected_sums[static_cast<size_t>(2 * slice * rows + i)] += std::exp(static_cast<double>(row[j]) - max.data[i]);
      }
      if (targets.data[i] >= begin && targets.data[i] < end) {
        expected_sums[static_cast<size_t>((2 * slice + 1) * rows + i)] += row[targets.data[i]];
      }
    }
    all_sums.data[i] = static_cast<float>(expected_sums[static_cast<size_t>(i)].value +
                                          expected_sums[static_cast<size_t>(2 * rows + i)].value);
    all_sums.data[rows + i] = row[targets.data[i]];
  });
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& backend, const Place& at) -> absl::Status {
    for (const int64_t slice : {0, 1}) {
      const int64_t begin = slice == 0 ? 0 : first;
      const int64_t count = slice == 0 ? first : classes - first;
      const MatrixView part = at(ColumnsOf(logits, begin, count));
      const auto of = [&](VectorView<float> all, int64_t size) {
        return at(VectorView<float>(all.data + slice * size, size));
      };
      GP_RETURN_IF_ERROR(backend.CrossEntropyMax(part, of(maxima, rows)));
      GP_RETURN_IF_ERROR(backend.CrossEntropySums(part, at(max), at(targets), begin, of(sums, 2 * rows)));
      GP_RETURN_IF_ERROR(backend.CrossEntropyGrad(part, at(max), at(all_sums), at(targets), begin, kScale,
                                                  at(ColumnsOf(gradient, begin, count)), at(losses.At(slice))));
    }
    return absl::OkStatus();
  }));
  const std::vector<double> of_rows = LossesOf(values, targets);
  const double loss = std::accumulate(of_rows.begin(), of_rows.end(), kLossBefore);
  checks.Compare("loss of both slices", losses, {loss, loss}, 1e-5);
  checks.Compare("greatest logits", maxima, expected_maxima);
  checks.Compare("sums", sums, expected_sums);
  CompareGradient(checks, gradient, values, targets);
  trial.Changed(logits);
  checks.End();
  return absl::OkStatus();
}

}  // namespace geopipe
