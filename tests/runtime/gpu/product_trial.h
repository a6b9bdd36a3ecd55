// Products of the port against fp64, for every library that has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/gpu/port/gpu_port.h"

namespace geopipe {

// bf16 numbers by their bits; to the nearest, ties to even.
uint16_t RoundToBf16(float value);
float FromBf16(uint16_t bits);

// The device that a trial runs on. Functions REQUIRE that they succeed.
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

// All types, transposes, odd extents and kinds of addend that the port has.
struct ProductCase {
  GpProductShape shape;
  With with;
  std::string Name() const;
};
std::vector<ProductCase> ProductCases();

// Makes the plan and runs it on operands drawn from the seed; CHECKs the result against fp64, that nothing is written
// between its rows, and that another run has the same bits.
void CheckProduct(TrialDevice& device, const ProductCase& product, uint64_t seed);

}  // namespace geopipe
