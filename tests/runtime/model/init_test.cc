#include "runtime/model/init.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace geopipe {
namespace {

std::vector<float> Values(uint64_t seed, std::string_view name, int64_t rows, int64_t columns) {
  std::vector<float> values(rows * columns);
  RandomWeights weights(seed);
  REQUIRE(weights.Read(name, {rows, columns}, values).ok());
  return values;
}

TEST_CASE("Philox4x32-10 agrees with the published test vectors") {
  CHECK(Philox4x32({0, 0, 0, 0}, {0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("weights are what the documented formula gives with another library's log, sin and cos") {
  const std::vector<float> head = Values(42, "lm_head.weight", 3, 2);
  const std::vector<double> expected_head{0.00601732411, 0.0066829251,  -0.0145035144,
                                          -0.0249917985, -0.0292692868, -0.00298960934};
  for (size_t i = 0; i < head.size(); ++i) {
    CHECK(head[i] == Approx(expected_head[i]).epsilon(1e-7));
  }
  const std::vector<float> up = Values((uint64_t{1} << 40) + 7, "model.layers.3.mlp.up_proj.weight", 4, 300);
  const std::vector<size_t> at{0, 1, 1000, 1001, 1002, 1003};
  const std::vector<double> expected_up{-0.0160422709, 0.0238689962, 0.00083114279,
                                        -0.0121809279, 0.0109827481, 0.0220421541};
  for (size_t i = 0; i < at.size(); ++i) {
    CHECK(up[at[i]] == Approx(expected_up[i]).epsilon(1e-7));
  }
}

TEST_CASE("weights are normal(0, 0.02) and depend on seed and name") {
  const std::vector<float> values = Values(1, "a", 300, 333);
  double sum = 0;
  double squares = 0;
  double fourth_powers = 0;
  for (const float value : values) {
    const double z = value / 0.02;
    sum += z;
    squares += z * z;
    fourth_powers += z * z * z * z;
  }
  const auto count = static_cast<double>(values.size());
  CHECK(std::abs(sum / count) < 0.015);
  CHECK(squares / count == Approx(1).margin(0.02));
  CHECK(fourth_powers / count == Approx(3).margin(0.15));
  CHECK(Values(2, "a", 300, 333) != values);
  CHECK(Values(1, "b", 300, 333) != values);
  CHECK(Values(1, "a", 333, 300) == values);
}

TEST_CASE("norm weights are one") {
  std::vector<float> values(7);
  RandomWeights weights(9);
  REQUIRE(weights.Read("model.norm.weight", {7}, values).ok());
  CHECK(values == std::vector<float>(7, 1.0F));
}

}  // namespace
}  // namespace geopipe
