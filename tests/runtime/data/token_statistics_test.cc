#include "runtime/data/token_statistics.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

constexpr auto kUint16 = TokenDtype::kUint16;
constexpr auto kUint32 = TokenDtype::kUint32;

template <class T>
std::string FileOf(int64_t count, const std::function<T(int64_t)>& value) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const T next = value(i);
    bytes.append(reinterpret_cast<const char*>(&next), sizeof(next));
  }
  return bytes;
}

// Reads tokens as a file's reader does: says whether one is outside the vocabulary, and what the statistics say.
std::string Contradiction(const std::string& bytes, TokenDtype dtype, int64_t vocab_size) {
  TokenStatistics statistics;
  const size_t half = bytes.size() / 16 * 8;  // in two pieces
  statistics.Add(0, std::as_bytes(std::span(bytes)).first(half));
  statistics.Add(static_cast<int64_t>(half), std::as_bytes(std::span(bytes)).subspan(half));
  bool outside = false;
  const size_t width = dtype == kUint16 ? 2 : 4;
  for (size_t i = 0; i + width <= bytes.size(); i += width) {
    uint32_t token = 0;
    std::memcpy(&token, bytes.data() + i, width);
    outside = outside || token >= vocab_size;
  }
  return statistics.Contradiction(dtype, vocab_size, outside);
}

TEST_CASE("tokens of another width, order or kind are told from those of the dtype") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  const auto id = [&](uint64_t vocab) { return random.Next() % vocab; };
  const auto swap16 = [](uint16_t v) { return static_cast<uint16_t>(v << 8 | v >> 8); };
  const auto gauss = [&] {
    return static_cast<float>(0.02 *
                              std::sqrt(-2 * std::log((static_cast<double>(random.Next() >> 11) + 1) * 0x1p-53)) *
                              std::cos(6.283185307 * static_cast<double>(random.Next() >> 11) * 0x1p-53));
  };
  for (const uint64_t vocab : {100, 258, 5000, 32000, 50257, 60000, 128256}) {
    CAPTURE(vocab);
    const auto padded = static_cast<int64_t>(std::max<uint64_t>(vocab, 65536));
    const std::string wide = FileOf<uint32_t>(4096, [&](int64_t) { return static_cast<uint32_t>(id(vocab)); });
    CHECK(Contradiction(wide, kUint16, padded).find("set data.dtype: uint32") != std::string::npos);
    CHECK(Contradiction(wide, kUint32, static_cast<int64_t>(vocab)).empty());
    const std::string quad = FileOf<int64_t>(4096, [&](int64_t) { return static_cast<int64_t>(id(vocab)); });
    CHECK(Contradiction(quad, kUint16, padded).find("64-bit ids") != std::string::npos);
    CHECK(Contradiction(quad, kUint32, padded).find("64-bit ids") != std::string::npos);
    const std::string swapped = FileOf<uint32_t>(
        4096, [&](int64_t) { return __builtin_bswap32(static_cast<uint32_t>(id(std::min<uint64_t>(vocab, 65536)))); });
    CHECK(Contradiction(swapped, kUint32, static_cast<int64_t>(vocab)).find("big-endian ids") != std::string::npos);
    if (vocab <= 65536) {
      CHECK(Contradiction(swapped, kUint16, 65536).find("big-endian uint32 ids") != std::string::npos);
      const std::string big =
          FileOf<uint16_t>(16384, [&](int64_t) { return swap16(static_cast<uint16_t>(id(vocab))); });
      CHECK(Contradiction(big, kUint16, static_cast<int64_t>(vocab)).find("big-endian ids") != std::string::npos);
      const std::string narrow = FileOf<uint16_t>(4096, [&](int64_t) { return static_cast<uint16_t>(id(vocab)); });
      CHECK(Contradiction(narrow, kUint32, static_cast<int64_t>(vocab)).find("set data.dtype: uint16") !=
            std::string::npos);
    }
  }
  const std::string big = FileOf<uint16_t>(16384, [&](int64_t) { return swap16(static_cast<uint16_t>(id(50257))); });
  CHECK(Contradiction(big, kUint16, 65536).find("big-endian ids") != std::string::npos);  // no id is outside
  const std::string floats = FileOf<float>(4096, [&](int64_t) { return gauss(); });
  CHECK(Contradiction(floats, kUint16, 65536).find("float32") != std::string::npos);
  CHECK(Contradiction(floats, kUint32, 50257).find("float32") != std::string::npos);
  const std::string halves =
      FileOf<uint16_t>(16384, [&](int64_t) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(gauss()) >> 16); });
  CHECK(Contradiction(halves, kUint16, 65536).find("16-bit floating-point") != std::string::npos);
}

TEST_CASE("what legitimate data holds contradicts nothing") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const TokenDtype dtype = round % 2 == 0 ? kUint16 : kUint32;
    const uint64_t vocab =
        std::max<uint64_t>(2, random.Next() >> (round % 2 == 0 ? 48 + random.Next() % 16 : 40 + random.Next() % 24));
    const uint64_t skew = random.Next() % 4;
    const uint64_t pad = random.Next() % vocab;
    const uint64_t real = 1 + random.Next() % 64;  // of each 64 tokens, the others are padding
    const uint64_t period = random.Next() % 3 == 0 ? 1 + random.Next() % 12 : 0;
    const int64_t count = 1 + static_cast<int64_t>(random.Next() % 6000);
    std::vector<uint64_t> repeated(period);
    std::ranges::generate(repeated, [&] { return random.Next() % vocab; });
    const auto token = [&](int64_t i) {
      if (period > 0) {
        return repeated[static_cast<uint64_t>(i) % period];
      }
      if (static_cast<uint64_t>(i) % 64 >= real) {
        return pad;
      }
      uint64_t value = random.Next() % vocab;
      for (uint64_t k = 0; k < skew; ++k) {
        value = random.Next() % (value + 1);
      }
      return value;
    };
    const std::string bytes = dtype == kUint16
                                  ? FileOf<uint16_t>(count, [&](int64_t i) { return static_cast<uint16_t>(token(i)); })
                                  : FileOf<uint32_t>(count, [&](int64_t i) { return static_cast<uint32_t>(token(i)); });
    CAPTURE(round, vocab, skew, real, period, count);
    REQUIRE(Contradiction(bytes, dtype, static_cast<int64_t>(vocab)).empty());
  }
}

TEST_CASE("few tokens, counted ones and those of a wrong vocabulary contradict nothing") {
  CHECK(Contradiction("", kUint16, 10).empty());
  CHECK(Contradiction(FileOf<uint16_t>(8, [](int64_t i) { return i % 2 == 0 ? i * 100 : 0; }), kUint16, 65536).empty());
  CHECK(Contradiction(FileOf<uint16_t>(65536, [](int64_t i) { return i; }), kUint16, 65536).empty());
  CHECK(Contradiction(FileOf<uint16_t>(50000, [](int64_t i) { return i; }), kUint16, 32000).empty());
  CHECK(Contradiction(FileOf<uint32_t>(128256, [](int64_t i) { return i; }), kUint32, 128256).empty());
  CHECK(Contradiction(FileOf<uint32_t>(128256, [](int64_t i) { return i; }), kUint32, 65536).empty());
}

}  // namespace
}  // namespace geopipe
