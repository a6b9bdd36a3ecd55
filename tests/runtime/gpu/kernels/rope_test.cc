#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

struct RopeShape {
  int64_t rows;
  int64_t sequence;
  int64_t heads;
  int64_t head_dim;
  int64_t apart = 0;
  int64_t shift = 0;
};

TEST_CASE("RoPE on a GPU has the processor's bits, both ways, and is within its bound of fp64") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const RopeShape shape =
      GENERATE(RopeShape{1, 1, 1, 2}, RopeShape{6, 3, 2, 6, 1}, RopeShape{3, 3, 4, 20}, RopeShape{8, 4, 3, 64, 0, 1},
               RopeShape{10, 5, 40, 128}, RopeShape{4, 4, 3, 26, 3}, RopeShape{3, 3, 9, 256, 8});
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  const auto direction = GENERATE(RopeDirection::kForward, RopeDirection::kBackward);
  CAPTURE(shape.rows, shape.heads, shape.head_dim, shape.apart, shape.shift);
  const int64_t columns = shape.heads * shape.head_dim;
  const int64_t half = shape.head_dim / 2;
  const std::vector<float> x = test.Normal(type, shape.rows * columns);
  std::vector<float> cosine(shape.sequence * half);
  std::vector<float> sine(shape.sequence * half);
  for (int64_t i = 0; i < std::ssize(cosine); ++i) {
    const float angle = test.Normal(1, 3)[0];
    cosine[i] = std::cos(angle);
    sine[i] = std::sin(angle);
  }
  const auto run = [&](const Matrix& in_place) {
    const GpRope args = {.dtype = GpTypeOf(type),
                         .rows = shape.rows,
                         .sequence = shape.sequence,
                         .heads = shape.heads,
                         .head_dim = shape.head_dim,
                         .x = in_place.view().data,
                         .x_stride = in_place.view().stride,
                         .cosine = cosine.data(),
                         .sine = sine.data(),
                         .backward = direction == RopeDirection::kBackward ? 1 : 0};
    REQUIRE(gpu::Rope(&args, nullptr) == 0);
  };
  const Matrix turned(type, shape.rows, columns, x, shape.apart, shape.shift);
  run(turned);
  std::vector<Expected> expected(x.size());
  for (int64_t at = 0; at < std::ssize(x); ++at) {
    const int64_t first = at / shape.head_dim * shape.head_dim;
    const int64_t angle = at / columns % shape.sequence * half;
    expected[at] = RopeOf(Floats(x.data() + first, shape.head_dim), at - first, Floats(cosine.data() + angle, half),
                          Floats(sine.data() + angle, half), direction);
  }
  CHECK(OutsideBound(type, turned.values(), expected) == "");
  CHECK(turned.IntactBetweenRows());

  const Matrix of_cpu(type, shape.rows, columns, x);
  REQUIRE(test.backend().Rope(of_cpu.view(), {cosine, sine}, shape.sequence, shape.head_dim, direction).ok());
  CHECK(turned.values() == of_cpu.values());
  CheckSameInAllOrders([&] {
    const Matrix again(type, shape.rows, columns, x, shape.apart, shape.shift);
    run(again);
    return Results().Add(again);
  });
}

}  // namespace
}  // namespace geopipe
