#include "tests/device/kernel_checks.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "tests/support/all_processors.h"

namespace geopipe {
namespace {

// Elements, or rows, that are compared of a result of real size.
constexpr int64_t kSampledElements = 4096;
constexpr int64_t kSampledRows = 64;

// The first and the last of `count`, and some between.
std::vector<int64_t> Sampled(int64_t count, int64_t at_most, std::mt19937_64& random) {
  std::vector<int64_t> sampled;
  for (int64_t i = 0; i < std::min(count, at_most); ++i) {
    sampled.push_back(count <= at_most ? i : std::uniform_int_distribution<int64_t>(0, count - 1)(random));
  }
  if (count > at_most) {
    sampled.front() = 0;
    sampled.back() = count - 1;
  }
  return sampled;
}

}  // namespace

std::string NameOf(DType dtype) { return std::string(DTypeName(dtype)); }

void KernelChecks::Begin(std::string thing) {
  thing_ = std::move(thing);
  trial_.Clear();
}

int64_t KernelChecks::Extent(int64_t small, int64_t odd, int64_t real) {
  if (is_real()) {
    return real;
  }
  const double most = std::log(static_cast<double>(sizes_ == Sizes::kSmall ? small : odd));
  return std::lround(std::exp(std::uniform_real_distribution<double>(0, most)(random_)));
}

MatrixView KernelChecks::Normal(DType dtype, int64_t rows, int64_t columns, float deviation) {
  const int64_t apart = Apart();
  return trial_.Normal(dtype, rows, columns, apart, Shift(), deviation);
}

MatrixView KernelChecks::Empty(DType dtype, int64_t rows, int64_t columns) {
  const int64_t apart = Apart();
  return trial_.Empty(dtype, rows, columns, apart, Shift());
}

VectorView<int32_t> KernelChecks::Starts(int64_t samples, int64_t sequence) {
  if (Draw(2) == 0) {
    return {};
  }
  int64_t start = 0;
  return trial_.Integers(samples * sequence, [&](int64_t i) {
    start = i % sequence == 0 ? 0 : (Draw(6) == 0 ? i % sequence : start);
    return start;
  });
}

absl::Status KernelChecks::Run(const GpuTrial::Call& call, bool on_processor) {
  GP_ASSIGN_OR_RETURN(const bool same, trial_.RunOnGpu(call));
  Report("bits of a second run", same);
  return on_processor ? trial_.RunOnCpu(call) : absl::OkStatus();
}

void KernelChecks::Report(std::string_view result, const WorstError& worst) {
  report_.Check(fmt::format("{}: {}", thing_, result), worst.error, worst.allowed);
}

void KernelChecks::CompareElements(std::string_view result, const MatrixView& view,
                                   const std::function<Expected(int64_t row, int64_t column)>& expected,
                                   Allowed allowed) {
  const std::vector<float> actual = trial_.ResultOf(view);
  const std::vector<int64_t> sampled = Sampled(std::ssize(actual), is_real() ? kSampledElements : INT64_MAX, random_);
  std::mutex mutex;
  WorstError worst;
  constexpr int64_t kAtOnce = 1024;
  OnAllProcessors((std::ssize(sampled) + kAtOnce - 1) / kAtOnce, /*grain=*/1, [&](int64_t part) {
    WorstError error;
    for (int64_t k = part * kAtOnce; k < std::min(std::ssize(sampled), (part + 1) * kAtOnce); ++k) {
      const int64_t i = sampled[static_cast<size_t>(k)];
      const Expected here = expected(i / view.columns, i % view.columns);
      error.Note(actual[static_cast<size_t>(i)], here.value, allowed(view.dtype, here));
    }
    const std::scoped_lock lock(mutex);
    worst.Note(error);
  });
  Report(result, worst);
}

void KernelChecks::CompareRows(std::string_view result, const MatrixView& view,
                               const std::function<std::vector<Expected>(int64_t row)>& expected, Allowed allowed) {
  const std::vector<float> actual = trial_.ResultOf(view);
  const std::vector<int64_t> sampled = Sampled(view.rows, is_real() ? kSampledRows : INT64_MAX, random_);
  std::mutex mutex;
  WorstError worst;
  const int64_t grain = is_real() ? 1 : 1024;
  OnAllProcessors(std::ssize(sampled), grain, [&](int64_t k) {
    const int64_t row = sampled[static_cast<size_t>(k)];
    const std::vector<Expected> here = expected(row);
    WorstError error;
    for (int64_t j = 0; j < view.columns; ++j) {
      const Expected& element = here[static_cast<size_t>(j)];
      error.Note(actual[static_cast<size_t>(row * view.columns + j)], element.value, allowed(view.dtype, element));
    }
    const std::scoped_lock lock(mutex);
    worst.Note(error);
  });
  Report(result, worst);
}

void KernelChecks::Compare(std::string_view result, VectorView<float> view, const std::vector<Expected>& expected) {
  const std::vector<float> actual = trial_.ResultOf(GpuTrial::ViewOf(view));
  WorstError worst;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst.Note(actual[i], expected[i].value, AllowedError(DType::kFp32, expected[i]));
  }
  Report(result, worst);
}

void KernelChecks::Compare(std::string_view result, VectorView<double> view, const std::vector<double>& expected,
                           double relative) {
  const std::vector<double> actual = trial_.ResultOf(view);
  WorstError worst;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst.Note(actual[i], expected[i], relative * std::abs(expected[i]) + 1e-300);
  }
  Report(result, worst);
}

void KernelChecks::CompareBits(std::string_view result, const MatrixView& view) {
  CompareBits(result, view, GpuTrial::ValuesOf(view));
}

void KernelChecks::CompareBits(std::string_view result, const MatrixView& view, const std::vector<float>& expected) {
  const std::vector<float> actual = trial_.ResultOf(view);
  int64_t others = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    others += actual[i] == expected[i] ? 0 : 1;
  }
  report_.CheckCount(fmt::format("{}: {}, elements of other bits", thing_, result), others, 0);
}

void KernelChecks::End() { Report("nothing else is written", trial_.IsRestUntouched()); }

}  // namespace geopipe
