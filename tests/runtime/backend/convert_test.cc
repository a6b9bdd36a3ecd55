#include <limits>

#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

BFloat16 Converted(KernelTest& test, float value) {
  std::vector<float> from{value};
  BFloat16 to{};
  const MatrixView view{
      .data = reinterpret_cast<std::byte*>(&to), .rows = 1, .columns = 1, .stride = 1, .dtype = DType::kBf16};
  REQUIRE(test.backend().Convert(View(from, 1, 1), view).ok());
  return to;
}

TEST_CASE("fp32 becomes the nearest bf16, ties the even one") {
  KernelTest test;
  CHECK(Converted(test, 1.0F).bits == 0x3f80);
  CHECK(Converted(test, 0x1.01p0F).bits == 0x3f80);  // halfway between 1 and its successor
  CHECK(Converted(test, 0x1.03p0F).bits == 0x3f82);  // halfway between an odd one and an even one
  CHECK(Converted(test, 0x1.0102p0F).bits == 0x3f81);
  CHECK(Converted(test, -0.0F).bits == 0x8000);
  CHECK(Converted(test, 0x1.fep127F).bits == 0x7f7f);  // the largest
  CHECK(Converted(test, 0x1.fefffep127F).bits == 0x7f7f);
  CHECK(Converted(test, -0x1.ffp127F).bits == 0xff80);  // rounds to infinity
  CHECK(Converted(test, std::numeric_limits<float>::infinity()).bits == 0x7f80);
  CHECK(Converted(test, 0x1p-133F).bits == 0x0001);  // the smallest
  CHECK(Converted(test, 0x1p-134F).bits == 0x0000);  // half of it
  CHECK(Converted(test, 0x1.8p-133F).bits == 0x0002);
  CHECK(Converted(test, std::numeric_limits<float>::quiet_NaN()).bits == 0x7fc0);
  CHECK(Converted(test, std::bit_cast<float>(0x7f800001U)).bits == 0x7fc0);  // not infinity
  CHECK(Converted(test, std::bit_cast<float>(0xffffffffU)).bits == 0xffff);
}

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::ranges::transform(values, bits.begin(), [](float value) { return std::bit_cast<uint32_t>(value); });
  return bits;
}

TEST_CASE("bf16 becomes fp32 exactly, and whatever lies between two of them the nearer one") {
  KernelTest test;
  constexpr int64_t kPatterns = 0x10000;
  std::vector<BFloat16> every(kPatterns);
  std::vector<uint32_t> exact(kPatterns);
  std::vector<float> between;
  for (uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    every[pattern].bits = static_cast<uint16_t>(pattern);
    exact[pattern] = pattern << 16;
    for (const uint32_t fraction : {0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      between.push_back(std::bit_cast<float>((pattern << 16) | fraction));
    }
  }
  const auto count = static_cast<int64_t>(between.size());
  const Matrix rounded(DType::kBf16, 1, count);
  REQUIRE(test.backend().Convert(View(between, 1, count), rounded.view()).ok());
  CHECK((BitsOf(rounded.values()) == BitsOf(Held(DType::kBf16, between))));

  const ConstMatrixView from(MatrixView{.data = reinterpret_cast<std::byte*>(every.data()),
                                        .rows = 256,
                                        .columns = 256,
                                        .stride = 256,
                                        .dtype = DType::kBf16});
  std::vector<float> wide(kPatterns);
  REQUIRE(test.backend().Convert(from, View(wide, 256, 256)).ok());
  CHECK((BitsOf(wide) == exact));
}

TEST_CASE("conversion takes any sizes, strides and types") {
  KernelTest test;
  const auto from_type = GENERATE(DType::kFp32, DType::kBf16);
  const auto to_type = GENERATE(DType::kFp32, DType::kBf16);
  const int64_t rows = GENERATE(1, 7);
  const int64_t columns = GENERATE(1, 7, 63, 65, 5000);
  const std::vector<float> values = test.Normal(from_type, rows * columns);
  const Matrix from(from_type, rows, columns, values, 3, 1);
  const Matrix to(to_type, rows, columns, {}, 5, 3);
  REQUIRE(test.backend().Convert(from.view(), to.view()).ok());
  CHECK(to.values() == Held(to_type, values));
  CHECK(to.IntactBetweenRows());
}

TEST_CASE("what the backend does not compute in is refused") {
  KernelTest test;
  std::vector<float> a(4);
  MatrixView fp16 = View(a, 2, 2);
  fp16.dtype = DType::kFp16;
  for (const absl::Status& status :
       {test.backend().MatMul(Product::kNN, fp16, fp16, Addend::None(), fp16),
        test.backend().Convert(View(a, 2, 2), fp16), test.backend().SwiGlu(fp16, fp16, fp16)}) {
    CHECK(status.code() == absl::StatusCode::kUnimplemented);
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("fp16"));
  }
}

}  // namespace
}  // namespace geopipe
