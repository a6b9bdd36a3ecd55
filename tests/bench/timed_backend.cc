#include "tests/bench/timed_backend.h"

#include <fmt/format.h>

#include <algorithm>

namespace geopipe {

std::vector<TimedBackend::Kernel> TimedBackend::End() {
  times_ = false;
  std::vector<Kernel> kernels;
  for (auto& [name, kernel] : kernels_) {
    kernels.push_back(std::move(kernel));
    kernels.back().name = name;
  }
  std::ranges::sort(kernels, std::greater(), &Kernel::seconds);
  return kernels;
}

std::string TimedBackend::NameOf(Product product, const ConstMatrixView& a, const MatrixView& c) {
  const int64_t k = product == Product::kTN ? a.rows : a.columns;
  const std::string_view what = product == Product::kNT ? "forward" : product == Product::kNN ? "input" : "weight";
  return fmt::format("{} {}x{}x{} {}", what, c.rows, k, c.columns, DTypeName(a.dtype));
}

}  // namespace geopipe
