// Checks of the GPU's kernels through its backend, with operands of random, odd or real shapes.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/device/report.h"
#include "tests/support/gpu_trial.h"
#include "tests/support/kernel_references.h"

namespace geopipe {

// kSmall: what an emulated GPU computes in milliseconds. kReal: a model's, of which some elements are checked.
enum class Sizes : uint8_t { kSmall, kOdd, kReal };

// Draws the operands of one call at a time, makes it and reports what is wrong with its results.
class KernelChecks {
 public:
  // All outlive it.
  KernelChecks(GpuTrial& trial, Report& report, Sizes sizes, uint64_t seed)
      : trial_(trial), report_(report), sizes_(sizes), random_(seed) {}

  GpuTrial& trial() { return trial_; }
  bool is_real() const { return sizes_ == Sizes::kReal; }

  // Begins with no operands. `thing` names the call in the report.
  void Begin(std::string thing);
  // A number from 1 to `small` or `odd`, small ones as often as great ones; or `real`.
  int64_t Extent(int64_t small, int64_t odd, int64_t real);
  int64_t Draw(int64_t below) { return std::uniform_int_distribution<int64_t>(0, below - 1)(random_); }
  // Matrices of the trial, now and then with rows apart, or off where memory is aligned; never of real shapes.
  MatrixView Normal(DType dtype, int64_t rows, int64_t columns, float deviation = 1);
  MatrixView Empty(DType dtype, int64_t rows, int64_t columns);
  // Begins of documents of some samples; none, in half of the cases.
  VectorView<int32_t> Starts(int64_t samples, int64_t sequence);

  // Makes the call, twice on the GPU; and on the processor, where the results have to have its bits.
  absl::Status Run(const GpuTrial::Call& call, bool on_processor = false);

  // Each of these compares a result, and takes it out of what must not have changed. Values are fp64's, by the
  // element or by the row, and `allowed` is one of kernel_references.h.
  using Allowed = double (*)(DType dtype, const Expected& expected);
  void CompareElements(std::string_view result, const MatrixView& view,
                       const std::function<Expected(int64_t row, int64_t column)>& expected,
                       Allowed allowed = AllowedErrorOfRoundedSum);
  void CompareRows(std::string_view result, const MatrixView& view,
                   const std::function<std::vector<Expected>(int64_t row)>& expected,
                   Allowed allowed = AllowedErrorOfRoundedSum);
  void Compare(std::string_view result, VectorView<float> view, const std::vector<Expected>& expected);
  void Compare(std::string_view result, VectorView<double> view, const std::vector<double>& expected, double relative);
  // The bits are the processor's, or those of `expected`.
  void CompareBits(std::string_view result, const MatrixView& view);
  void CompareBits(std::string_view result, const MatrixView& view, const std::vector<float>& expected);

  // Adds a finding of another kind.
  void Report(std::string_view result, const WorstError& worst);
  void Report(std::string_view what, bool holds) { report_.Check(fmt::format("{}: {}", thing_, what), holds); }

  // Reports whether anything else has changed.
  void End();

 private:
  int64_t Apart() { return is_real() || Draw(2) == 0 ? 0 : Draw(9); }
  int64_t Shift() { return is_real() || Draw(3) != 0 ? 0 : 1; }

  GpuTrial& trial_;
  class Report& report_;
  Sizes sizes_;
  std::mt19937_64 random_;
  std::string thing_;
};

std::string NameOf(DType dtype);

// The families of kernels, each in a type. Errors: what kept them from going on.
absl::Status CheckProducts(KernelChecks& checks, DType dtype);
absl::Status CheckPortProducts(KernelChecks& checks, DType dtype);  // which the backend's attention calls
absl::Status CheckEmbeddings(KernelChecks& checks, DType dtype);
absl::Status CheckNorms(KernelChecks& checks, DType dtype);
absl::Status CheckRope(KernelChecks& checks, DType dtype);
absl::Status CheckSoftmax(KernelChecks& checks, DType dtype);
absl::Status CheckAttention(KernelChecks& checks, DType dtype);
// Attention whose heads of keys do not fit into the workspace at once: three, and then one.
absl::Status CheckAttentionInTurns(KernelChecks& checks);
absl::Status CheckSwiGlu(KernelChecks& checks, DType dtype);
absl::Status CheckLoss(KernelChecks& checks, DType dtype);
absl::Status CheckSlicedLoss(KernelChecks& checks, DType dtype);
absl::Status CheckVectors(KernelChecks& checks, DType dtype);
absl::Status CheckAdamW(KernelChecks& checks, DType dtype);

}  // namespace geopipe
