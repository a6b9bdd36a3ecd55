#include "runtime/data/token_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

// Words that are needed for a verdict. If words were as likely at places of either parity, all of so many would lie at
// one parity in less than one of 2^64 files. Some must differ, so that a few words that repeat with an even period
// count for nothing.
constexpr int64_t kMinWords = 64;
constexpr int64_t kMinDifferent = 16;
// Bytes of so many words take all of their values, unless they are bounded.
constexpr int64_t kMinForBytes = 8192;
constexpr int64_t kMinForSmallBytes = 256;  // bounded by half of them

std::string Instead(std::string_view dtype, std::string_view what, std::string_view remedy) {
  return fmt::format("data.dtype is {}, but {}; {}", dtype, what, remedy);
}

constexpr std::string_view kSwap = "write them little-endian (numpy: .byteswap().tofile)";
constexpr std::string_view kConvert64 = "write them as uint16 or uint32 (numpy: .astype('uint32').tofile)";

int64_t Count(const std::array<bool, 256>& values) { return std::ranges::count(values, true); }

int64_t Max(const std::array<bool, 256>& values) {
  int64_t max = 255;
  while (max > 0 && !values[static_cast<size_t>(max)]) {
    --max;
  }
  return max;
}

}  // namespace

void TokenStatistics::Add(int64_t offset, std::span<const std::byte> bytes) {
  GP_CHECK(offset % 2 == 0 && bytes.size() % 2 == 0, "{} bytes at {}", bytes.size(), offset);
  static_assert(std::endian::native == std::endian::little, "the words are little-endian");
  size_t place = static_cast<size_t>(offset / 2) % kPlaces;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint16_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    ++counts_[kPlaces * word + place];
    place = (place + 1) % kPlaces;
  }
}

TokenStatistics::Words TokenStatistics::Of(std::initializer_list<size_t> places) const {
  Words words;
  for (size_t word = 0; word < kWords; ++word) {
    int64_t count = 0;
    for (const size_t place : places) {
      count += counts_[kPlaces * word + place];
    }
    if (count == 0) {
      continue;
    }
    const auto value = static_cast<int64_t>(word);
    words.count += count;
    words.small += value > 0 && value <= kSmall ? count : 0;
    words.large += value > kSmall ? count : 0;
    words.different += value > 0 ? 1 : 0;
    words.different_large += value > kSmall ? 1 : 0;
    words.max = value;
    words.low[word % 256] = true;
    words.high[word / 256] = true;
    const size_t magnitude = word & 0x7fff;
    constexpr size_t kExponentOfOne = 127;
    const size_t exponent = magnitude >> 7;
    words.single += exponent >= kExponentOfOne - 20 && exponent <= kExponentOfOne + 20 ? count : 0;
    words.half += magnitude >= 0x1c00 && magnitude < 0x4400 ? count : 0;
    words.negative += (word & 0x8000) != 0 ? count : 0;
  }
  return words;
}

std::string TokenStatistics::Contradiction(TokenDtype dtype, int64_t vocab_size, bool outside) const {
  return dtype == TokenDtype::kUint16 ? Narrow(vocab_size, outside) : Wide(vocab_size, outside);
}

// Judges what is read as uint16.
std::string TokenStatistics::Narrow(int64_t vocab_size, bool outside) const {
  const Words even = Of({0, 2});
  const Words odd = Of({1, 3});
  const auto varied = [](const Words& words) {
    return words.small + words.large >= kMinWords && words.different >= kMinDifferent;
  };
  if (odd.large == 0 && varied(even) &&
      (odd.zero() || (even.large >= kMinWords && even.different_large >= kMinDifferent))) {
    const bool is_64_bit = Of({2, 3}).zero();
    return is_64_bit ? Instead("uint16", "three of four tokens are 0, as in a file of 64-bit ids", kConvert64)
                     : Instead("uint16",
                               fmt::format("every second token is {}, as in a file of uint32 ids",
                                           odd.zero() ? "0" : fmt::format("at most {}", odd.max)),
                               "set data.dtype: uint32");
  }
  if (even.zero() && varied(odd)) {
    return Instead("uint16", "every first of two tokens is 0, as in a file of big-endian uint32 ids",
                   "write them little-endian (numpy: .byteswap().tofile) and set data.dtype: uint32");
  }
  // Floats show here as words of which at least 99 % of one parity are upper halves of usual numbers, and those of the
  // other parity no more than by chance.
  if (varied(odd) && 100 * odd.single >= 99 * odd.count && 2 * even.single < even.count) {
    return Instead("uint16", "every second token looks like the exponent of a float32", "name a file of token ids");
  }
  const Words all = Of({0, 1, 2, 3});
  const int64_t max_swapped = Max(all.low);  // of the upper bytes, were the file big-endian
  const bool has_high_bytes = all.count >= kMinForBytes && Count(all.high) >= 250;
  const bool fits_swapped = 256 * max_swapped < vocab_size;
  if ((has_high_bytes || (outside && all.count >= kMinForSmallBytes)) && fits_swapped &&
      max_swapped < (has_high_bytes ? 252 : 200) && max_swapped < Max(all.high)) {
    return Instead("uint16",
                   fmt::format("no token's lower byte is above {} while the upper ones go up to {}, as in a file of "
                               "big-endian ids",
                               max_swapped, Max(all.high)),
                   kSwap);
  }
  const bool both_signs = 5 * all.negative >= all.count && 5 * (all.count - all.negative) >= all.count;
  if (all.count >= kMinForBytes && all.different >= kMinWords && both_signs &&
      100 * std::max(all.single, all.half) >= 99 * all.count) {
    return Instead("uint16", "the tokens look like 16-bit floating-point numbers", "name a file of token ids");
  }
  return "";
}

// Judges what is read as uint32: the upper halves are the odd words.
std::string TokenStatistics::Wide(int64_t vocab_size, bool outside) const {
  const Words first = Of({0, 1});
  const Words second = Of({2, 3});
  if (second.zero() && first.small + first.large >= kMinWords && Of({0}).different >= kMinDifferent) {
    return Instead("uint32", "every second token is 0, as in a file of 64-bit ids", kConvert64);
  }
  if (!outside) {
    return "";
  }
  const Words low = Of({0, 2});
  const Words high = Of({1, 3});
  if (low.zero() && high.different > 0) {
    return Instead("uint32", "the lower halves of all tokens are 0, as in a file of big-endian ids", kSwap);
  }
  if (high.count >= kMinWords && 100 * high.single >= 99 * high.count && 2 * low.single < low.count) {
    return Instead("uint32", "the tokens look like float32 numbers", "name a file of token ids");
  }
  if (std::max(low.max, high.max) < vocab_size && high.large >= kMinWords && high.different_large >= kMinDifferent) {
    return Instead("uint32", "some are beyond the vocabulary and their halves are not, as in a file of uint16 ids",
                   "set data.dtype: uint16");
  }
  return "";
}

}  // namespace geopipe
