// Judges whether the bytes of a token file look like tokens of the dtype as which they are read. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// Counts the 16-bit words of a file, apart for each of the four places that they have in eight bytes: ids that are
// wider than they are read leave zeros at the same places, and floating-point numbers their exponents.
class TokenStatistics {
 public:
  TokenStatistics() : counts_(kWords * kPlaces) {}

  // REQUIRES: offset, from the file's beginning, and size are even.
  void Add(int64_t offset, std::span<const std::byte> bytes);

  // Empty, or what contradicts `dtype` with the remedy: "data.dtype is uint16, but every second token is 0, ...; set
  // data.dtype: uint32". It says so only where some dozens of different words would all lie at the places of one
  // parity, or of one range, by chance: a legitimate file never gives that, whatever its vocabulary, padding and
  // repetitions. `outside`: a token is known to be outside the vocabulary, and it is asked why: less is enough then.
  std::string Contradiction(TokenDtype dtype, int64_t vocab_size, bool outside) const;

 private:
  static constexpr size_t kWords = 65'536;
  static constexpr size_t kPlaces = 4;

  // Statistics of the words at some places.
  struct Words {
    int64_t count = 0;
    int64_t small = 0;            // at most kSmall, and not zero
    int64_t large = 0;            // above kSmall
    int64_t different = 0;        // other than zero
    int64_t different_large = 0;  // above kSmall
    int64_t max = 0;
    std::array<bool, 256> low{};   // values of the low byte
    std::array<bool, 256> high{};  // values of the high byte
    int64_t single = 0;            // high halves of fp32 from 2^-20 to 2^20, and bf16 of that magnitude
    int64_t half = 0;              // fp16 from 2^-8 to 4
    int64_t negative = 0;          // with the sign bit
    bool zero() const { return small + large == 0; }
  };
  static constexpr int64_t kSmall = 15;
  Words Of(std::initializer_list<size_t> places) const;

  std::string Narrow(int64_t vocab_size, bool outside) const;
  std::string Wide(int64_t vocab_size, bool outside) const;

  std::vector<uint32_t> counts_;  // [word][place]
};

}  // namespace geopipe
