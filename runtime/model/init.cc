#include "runtime/model/init.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace geopipe {
namespace {

constexpr double kStandardDeviation = 0.02;
constexpr double kPi = 3.14159265358979323846;
constexpr double kTwoTo32 = 4294967296.0;

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

// Natural logarithm for 0 < x <= 1: x = m 2^e with sqrt(1/2) <= m < sqrt(2), ln m = 2 artanh((m - 1) / (m + 1)).
double Log(double x) {
  constexpr double kLn2 = 0.69314718055994530942;
  constexpr double kSqrtHalf = 0.70710678118654752440;
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double z = (m - 1) / (m + 1);
  const double square = z * z;
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) {
    series = series * square + 1.0 / k;
  }
  return exponent * kLn2 + 2 * z * series;
}

// Taylor polynomials for 0 <= x <= pi/4.
std::pair<double, double> SmallCosSin(double x) {
  const double square = x * x;
  double cosine = 0;
  double sine = 0;
  for (int k = 18; k >= 2; k -= 2) {
    cosine = (cosine + 1) * (-square / (k * (k - 1)));
    sine = (sine + 1) * (-square / (k * (k + 1)));
  }
  return {cosine + 1, (sine + 1) * x};
}

// cos and sin of 2 pi turn, 0 <= turn < 1, from the eighth of a turn in which it lies.
std::pair<double, double> CosSin(double turn) {
  const int quarter = static_cast<int>(turn * 4);
  const double rest = turn * 4 - quarter;  // exact
  auto [cosine, sine] = SmallCosSin((rest <= 0.5 ? rest : 1 - rest) * (kPi / 2));
  if (rest > 0.5) {
    std::swap(cosine, sine);
  }
  switch (quarter) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

std::array<float, 4> NormalBlock(const std::array<uint32_t, 4>& words) {
  std::array<float, 4> normals{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * Log((words[2 * pair] + 1.0) / kTwoTo32));
    const auto [cosine, sine] = CosSin(words[2 * pair + 1] / kTwoTo32);
    normals[2 * pair] = static_cast<float>(kStandardDeviation * radius * cosine);
    normals[2 * pair + 1] = static_cast<float>(kStandardDeviation * radius * sine);
  }
  return normals;
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

absl::Status RandomWeights::Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) {
  if (shape.size() < 2) {
    std::ranges::fill(values, name.ends_with(".bias") ? 0.0F : 1.0F);
    return absl::OkStatus();
  }
  const uint64_t hash = Fnv1a(name);
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)};
  for (size_t i = 0; i < values.size(); i += 4) {
    const uint64_t block = i / 4;
    const std::array<float, 4> normals =
        NormalBlock(Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)},
                               key));
    std::copy_n(normals.begin(), std::min<size_t>(4, values.size() - i), values.begin() + static_cast<ptrdiff_t>(i));
  }
  return absl::OkStatus();
}

}  // namespace geopipe
