// Shared by the tests of the GPU's kernels, which run on the processor here: bounds of their errors, and launches in
// all orders of threads.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "runtime/gpu/kernels/fibers.h"
#include "runtime/gpu/kernels/launchers.h"
#include "tests/runtime/backend/kernel_test.h"
#include "tests/support/kernel_references.h"

namespace geopipe {

inline GpDType GpTypeOf(DType dtype) { return dtype == DType::kBf16 ? kGpBf16 : kGpFp32; }

struct MatrixShape {
  int64_t rows;
  int64_t columns;
  int64_t apart = 0;  // as Matrix's
  int64_t shift = 0;

  int64_t size() const { return rows * columns; }
};

// Describes the first element that is further than `times` its AllowedError from what is expected; "" when there is
// none.
inline std::string OutsideBound(DType dtype, std::span<const float> actual, std::span<const Expected> expected,
                                double times = 1) {
  if (actual.size() != expected.size()) {
    return fmt::format("{} elements where {} are expected", actual.size(), expected.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i].value);
    if (!(error <= times * AllowedError(dtype, expected[i]))) {
      return fmt::format("[{}] is {}, {} expected, terms {}", i, actual[i], expected[i].value, expected[i].terms);
    }
  }
  return "";
}

// The same for results of the cpu backend instead of fp64's: both may be that far from the truth.
inline std::string OutsideBound(DType dtype, std::span<const float> actual, std::span<const float> of_cpu,
                                std::vector<Expected> expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i].value = of_cpu[i];
  }
  return OutsideBound(dtype, actual, expected, 2);
}

// Elements that a kernel has to write: as they are, they are outside of every bound.
inline std::vector<float> Poison(int64_t size) {
  return std::vector<float>(static_cast<size_t>(size), std::numeric_limits<float>::quiet_NaN());
}

// All the results of a run, one after the other.
class Results {
 public:
  Results& Add(std::span<const float> values) { return Append(values.data(), values.size_bytes()); }
  Results& Add(std::span<const double> values) { return Append(values.data(), values.size_bytes()); }
  Results& Add(const Matrix& matrix) { return Add(std::span<const float>(matrix.values())); }

  friend bool operator==(const Results&, const Results&) = default;  // of bits

 private:
  Results& Append(const void* data, size_t bytes) {
    const size_t old = bits_.size();
    bits_.resize(old + bytes);
    std::memcpy(bits_.data() + old, data, bytes);
    return *this;
  }

  std::vector<std::byte> bits_;
};

// Restores the launches' settings at its end.
class WithSettings {
 public:
  explicit WithSettings(const gpu::emulation::Settings& settings) { gpu::emulation::TheSettings() = settings; }
  ~WithSettings() { gpu::emulation::TheSettings() = {}; }
  WithSettings(const WithSettings&) = delete;
  WithSettings& operator=(const WithSettings&) = delete;
};

// The end of a process: its exit status, -1 when a signal ended it, and what it wrote to standard error.
struct ProcessEnd {
  int status = -1;
  std::string words;
};

// Runs f() in a process of its own, which ends with what it returns, if it does.
inline ProcessEnd InProcess(const std::function<int()>& f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    for (const int signal : {SIGABRT, SIGSEGV}) {
      std::signal(signal, SIG_DFL);  // Catch2's handler would report a failed test
    }
    _exit(f());
  }
  close(ends[1]);
  ProcessEnd end;
  char buffer[4096];
  for (ssize_t got = read(ends[0], buffer, sizeof(buffer)); got > 0; got = read(ends[0], buffer, sizeof(buffer))) {
    end.words.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  end.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return end;
}

// The orders of threads: ascending, descending, and four drawn ones.
inline std::vector<gpu::emulation::Settings> ThreadOrders() {
  using gpu::emulation::ThreadOrder;
  std::vector<gpu::emulation::Settings> orders = {{.order = ThreadOrder::kAscending},
                                                  {.order = ThreadOrder::kDescending}};
  for (uint64_t draw = 0; draw < 4; ++draw) {
    orders.push_back({.order = ThreadOrder::kShuffled, .seed = TestSeed() + draw});
  }
  return orders;
}

// Checks that a run, which returns its results, has the same bits in all orders of threads.
template <class Run>
void CheckSameInAllOrders(const Run& run) {
  const Results ascending = run();
  for (const gpu::emulation::Settings& order : ThreadOrders()) {
    const WithSettings settings(order);
    INFO("GEOPIPE_TEST_SEED=" << TestSeed() << ", thread order " << static_cast<int>(order.order) << ", "
                              << order.seed);
    CHECK(run() == ascending);
  }
}

}  // namespace geopipe
