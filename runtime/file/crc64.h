// CRC-64/XZ: the ECMA-182 polynomial 0x42F0E1EBA9EA3693, reflected, initial value and final xor all ones. It tells
// whether two workers read the same data; it is no defence against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace geopipe {

class Crc64 {
 public:
  void Update(std::span<const std::byte> bytes);
  // Of everything given so far. "123456789" gives 0x995DC9BBDF1939FA.
  uint64_t value() const { return ~state_; }

 private:
  uint64_t state_ = ~uint64_t{0};
};

}  // namespace geopipe
