#include "runtime/collective/reduce_kernels.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/runtime/collective/communicator_suite.h"

namespace geopipe::collective {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Run(ReduceOp op, ReducedType type, const std::vector<Bytes>& inputs, int64_t count) {
  std::vector<const std::byte*> sources;
  for (const Bytes& input : inputs) {
    sources.push_back(input.data());
  }
  Bytes out(inputs[0].size());
  (op == ReduceOp::kSum ? Sum : Max)(type, sources.data(), static_cast<int32_t>(sources.size()), out.data(), count);
  return out;
}

TEST_CASE("every number of elements and ranks is reduced in the order of the ranks") {
  const auto [type, dtype] = GENERATE(table<ReducedType, DType>({{ReducedType::kFp32, DType::kFp32},
                                                                 {ReducedType::kBf16, DType::kBf16},
                                                                 {ReducedType::kFp64, DType::kFp64},
                                                                 {ReducedType::kInt32, DType::kInt32}}));
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (size_t ranks = 1; ranks <= 9; ranks += 2) {
      for (const int64_t count : {1, 2, 7, 8, 9, 63, 64, 65, 200}) {
        std::vector<Bytes> inputs;
        for (size_t rank = 0; rank < ranks; ++rank) {
          inputs.push_back(Operand(dtype, count, rank * 100 + static_cast<uint64_t>(count)));
        }
        CAPTURE(DTypeName(dtype), ranks, count);
        CHECK(Run(op, type, inputs, count) == ReducedInOrder(op, dtype, inputs));
      }
    }
  }
}

template <class T>
Bytes BytesOf(std::initializer_list<T> values) {
  const auto bytes = std::as_bytes(std::span(values.begin(), values.size()));
  return {bytes.begin(), bytes.end()};
}

template <class T>
std::vector<T> Values(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_CASE("the greatest is no number where one rank has none") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto greatest = Values<float>(
      Run(ReduceOp::kMax, ReducedType::kFp32,
          {BytesOf<float>({1, kNan, 3, -1}), BytesOf<float>({2, 5, kNan, -2}), BytesOf<float>({0, 4, 4, -3})}, 4));
  CHECK(greatest[0] == 2);
  CHECK(std::isnan(greatest[1]));
  CHECK(std::isnan(greatest[2]));
  CHECK(greatest[3] == -1);
}

TEST_CASE("bf16 rounds once and to nearest even, what is too large becomes infinite, and no number stays none") {
  const uint16_t one = 0x3f80;
  const uint16_t half_ulp = 0x3b80;  // 2^-8, half of what separates 1 from its neighbour
  const uint16_t odd = 0x3f81;       // 1 + 2^-7
  const uint16_t greatest = 0x7f7f;
  const uint16_t nan = 0x7f81;
  const auto sums = Values<uint16_t>(
      Run(ReduceOp::kSum, ReducedType::kBf16,
          {BytesOf<uint16_t>({one, odd, one, greatest, nan}),
           BytesOf<uint16_t>({half_ulp, half_ulp, half_ulp, greatest, one}), BytesOf<uint16_t>({0, 0, half_ulp, 0, 0})},
          5));
  CHECK(sums[0] == one);      // a tie goes to the even one, below
  CHECK(sums[1] == odd + 1);  // and above
  CHECK(sums[2] == odd);      // two halves make one: nothing was rounded in between
  CHECK(sums[3] == 0x7f80);
  CHECK(std::isnan(std::bit_cast<float>(static_cast<uint32_t>(sums[4]) << 16)));
}

TEST_CASE("a copy past the caches is a copy, wherever it begins and ends") {
  const Bytes from = Operand(DType::kInt32, 100, 3);
  for (size_t begin = 0; begin < 70; ++begin) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{127}, size_t{300}}) {
      Bytes to(400);
      CopyPastCaches(from.data() + 7, to.data() + begin, static_cast<int64_t>(bytes));
      Bytes expected(400);
      std::memcpy(expected.data() + begin, from.data() + 7, bytes);
      CAPTURE(begin, bytes);
      CHECK(to == expected);
    }
  }
}

TEST_CASE("sums of int32 wrap around, and negative ones compare as such") {
  const std::vector<Bytes> inputs = {BytesOf<int32_t>({std::numeric_limits<int32_t>::max(), -5}),
                                     BytesOf<int32_t>({1, 3})};
  CHECK(Values<int32_t>(Run(ReduceOp::kSum, ReducedType::kInt32, inputs, 2)) ==
        std::vector<int32_t>{std::numeric_limits<int32_t>::min(), -2});
  CHECK(Values<int32_t>(Run(ReduceOp::kMax, ReducedType::kInt32, inputs, 2)) ==
        std::vector<int32_t>{std::numeric_limits<int32_t>::max(), 3});
}

}  // namespace
}  // namespace geopipe::collective
