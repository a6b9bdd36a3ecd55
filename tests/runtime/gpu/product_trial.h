// Products of the port against fp64, for every library that has them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/gpu/port/gpu_port.h"
#include "tests/support/kernel_references.h"

namespace geopipe {

// The device that a trial runs on. What fails, it remembers or ends the test with.
class TrialDevice {
 public:
  virtual ~TrialDevice() = default;
  virtual const GpProducts& products() const = 0;
  // Memory of the device, NaNs at first, which stays until the device goes.
  virtual void* Memory(int64_t bytes) = 0;
  virtual void Write(const void* from, void* to, int64_t bytes) = 0;
  // Waits for the runs before.
  virtual void Read(const void* from, void* to, int64_t bytes) = 0;
  virtual GpStream stream() = 0;
};

enum class With : uint8_t { kNothing, kAddend, kAddendInPlace, kRow, kAddendAndRow };

// A shape with room behind the rows, and in a batch behind the matrices.
GpProductShape ShapeOf(GpDType operands, GpDType result, bool a_transposed, bool b_transposed, int64_t m, int64_t n,
                       int64_t k, int64_t batch, With with);

// All types, transposes and kinds of addend that the port has, of these extents (m, n, k).
struct ProductCase {
  GpProductShape shape;
  With with;
  std::string Name() const;
};
std::vector<ProductCase> ProductCases(const std::vector<std::array<int64_t, 3>>& extents = {
                                          {1, 1, 1}, {3, 17, 5}, {33, 7, 65}});

struct ProductFinding {
  GpResult result = kGpOk;  // the first of making and running the plan that is another
  WorstError worst;         // from fp64
  int64_t stray = 0;        // elements written between the results
  bool same_bits = true;    // of another run

  // "" when nothing is wrong.
  std::string Wrong() const;
};

// Makes the plan and runs it twice on operands drawn from the seed.
ProductFinding TryProduct(TrialDevice& device, const ProductCase& product, uint64_t seed);

}  // namespace geopipe
