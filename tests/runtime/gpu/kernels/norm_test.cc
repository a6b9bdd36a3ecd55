#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

constexpr double kEps = 1e-5;

struct NormShape {
  int64_t rows;
  int64_t groups;
  int64_t width;
  int64_t apart = 0;
  int64_t shift = 0;

  int64_t size() const { return rows * groups * width; }
  int64_t lines() const { return rows * groups; }
};

// Operands of both kernels, and their results in fp64.
struct Norm {
  NormShape shape;
  DType type;
  std::vector<float> x;
  std::vector<float> weight;
  std::vector<float> grad_y;
  std::vector<float> residual;
  std::vector<float> rms;
  std::vector<Expected> y;
  std::vector<Expected> grad_x;  // without the residual
  std::vector<Expected> grad_weight;

  Norm(KernelTest& test, const NormShape& shape, DType type)
      : shape(shape),
        type(type),
        x(test.Normal(type, shape.size(), 2)),
        weight(test.Normal(shape.width)),
        grad_y(test.Normal(type, shape.size())),
        residual(test.Normal(type, shape.size())),
        rms(shape.lines()),
        y(shape.size()),
        grad_x(shape.size()),
        grad_weight(shape.width) {
    std::ranges::for_each(grad_weight, [](Expected& sum) { sum += 1; });
    for (int64_t line = 0; line < shape.lines(); ++line) {
      AddLine(line);
    }
  }

  void AddLine(int64_t line) {
    const int64_t first = line * shape.width;
    const auto of_line = [&](const std::vector<float>& values) { return Floats(values.data() + first, shape.width); };
    const NormLine expected = NormLineOf(of_line(x), weight, of_line(grad_y), kEps);
    rms[line] = static_cast<float>(expected.inverse_rms);
    std::ranges::copy(expected.y, y.begin() + first);
    std::ranges::copy(expected.grad_x, grad_x.begin() + first);
    for (int64_t j = 0; j < shape.width; ++j) {
      grad_weight[j].Add(expected.grad_weight[j], 1);
    }
  }

  // `moved`: elements further from where memory is aligned.
  Matrix MatrixOf(const std::vector<float>& values, int64_t moved = 0) const {
    return Matrix(type, shape.rows, shape.groups * shape.width, values, shape.apart + moved, shape.shift + moved);
  }

  // The gradients of `to`, which may be one of the operands.
  std::vector<float> Grad(const Matrix& of_x, const Matrix& of_dy, const Matrix* add, const Matrix& to) const {
    std::vector<float> sum(shape.width, 1.0F);
    std::vector<float> workspace = Poison(GpRmsNormGradWorkspaceBytes(shape.rows, shape.groups, shape.width) /
                                          static_cast<int64_t>(sizeof(float)));
    const GpRmsNormGrad args = {.dtype = GpTypeOf(type),
                                .rows = shape.rows,
                                .groups = shape.groups,
                                .width = shape.width,
                                .x = of_x.view().data,
                                .x_stride = of_x.view().stride,
                                .weight = weight.data(),
                                .inverse_rms = rms.data(),
                                .grad_y = of_dy.view().data,
                                .grad_y_stride = of_dy.view().stride,
                                .residual = add == nullptr ? nullptr : add->view().data,
                                .residual_stride = add == nullptr ? 0 : add->view().stride,
                                .grad_x = to.view().data,
                                .grad_x_stride = to.view().stride,
                                .grad_weight = sum.data(),
                                .workspace = workspace.data()};
    REQUIRE(gpu::RmsNormGrad(&args, nullptr) == 0);
    return sum;
  }
};

// Lines of a warp; of a block, whose threads keep one group of columns or two; of a block that reads anew. Of each with
// whole and broken groups of columns, and more lines than teams.
NormShape AnyNorm() {
  return GENERATE(NormShape{1, 1, 1}, NormShape{9, 1, 13, 3}, NormShape{130, 3, 64}, NormShape{5, 1, 100, 3, 1},
                  NormShape{3, 2, 512, 8}, NormShape{3, 4, 30}, NormShape{700, 3, 20}, NormShape{3, 1, 600},
                  NormShape{300, 1, 520, 1}, NormShape{2, 2, 1001}, NormShape{3, 1, 4096}, NormShape{2, 1, 4099, 5, 1},
                  NormShape{2, 1, 8192, 8}, NormShape{3, 1, 8203, 1});
}

TEST_CASE("RMSNorm on a GPU is within its bound of fp64, and of the processor") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const NormShape shape = AnyNorm();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.groups, shape.width, shape.apart, shape.shift);
  const Norm norm(test, shape, type);
  const Matrix x = norm.MatrixOf(norm.x);
  const auto run = [&](const Matrix& y, std::vector<float>& rms) {
    const GpRmsNorm args = {.dtype = GpTypeOf(type),
                            .rows = shape.rows,
                            .groups = shape.groups,
                            .width = shape.width,
                            .x = x.view().data,
                            .x_stride = x.view().stride,
                            .weight = norm.weight.data(),
                            .eps = static_cast<float>(kEps),
                            .y = y.view().data,
                            .y_stride = y.view().stride,
                            .inverse_rms = rms.data()};
    REQUIRE(gpu::RmsNorm(&args, nullptr) == 0);
  };
  const Matrix y = norm.MatrixOf(Poison(shape.size()));
  std::vector<float> rms = Poison(shape.lines());
  run(y, rms);
  CHECK(OutsideBound(type, y.values(), norm.y) == "");
  CHECK(y.IntactBetweenRows());
  CHECK(OutsideBound(DType::kFp32, rms, norm.rms, std::vector<Expected>(rms.size(), {.terms = 1})) == "");

  const Matrix of_cpu = norm.MatrixOf({});
  REQUIRE(test.backend().RmsNorm(x.view(), norm.weight, kEps, of_cpu.view(), rms).ok());
  CHECK(OutsideBound(type, y.values(), of_cpu.values(), norm.y) == "");

  CheckSameInAllOrders([&] {
    const Matrix again = norm.MatrixOf(Poison(shape.size()));
    run(again, rms);
    return Results().Add(again).Add(rms);
  });
  const std::vector<float> values = y.values();
  const Matrix moved = norm.MatrixOf(Poison(shape.size()), 1);
  run(moved, rms);
  CHECK(moved.values() == values);
  run(x, rms);  // in place
  CHECK(x.values() == values);
}

TEST_CASE("RMSNorm's gradients on a GPU are within their bound of fp64, and of the processor") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const NormShape shape = AnyNorm();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.groups, shape.width, shape.apart, shape.shift);
  const Norm norm(test, shape, type);
  const Matrix x = norm.MatrixOf(norm.x);
  const Matrix dy = norm.MatrixOf(norm.grad_y);
  const Matrix residual = norm.MatrixOf(norm.residual);

  const Matrix grad_x = norm.MatrixOf(Poison(shape.size()));
  const std::vector<float> grad_weight = norm.Grad(x, dy, nullptr, grad_x);
  CHECK(OutsideBound(type, grad_x.values(), norm.grad_x) == "");
  CHECK(grad_x.IntactBetweenRows());
  CHECK(OutsideBound(DType::kFp32, grad_weight, norm.grad_weight) == "");

  std::vector<Expected> with_residual = norm.grad_x;
  for (int64_t i = 0; i < shape.size(); ++i) {
    with_residual[i] += norm.residual[i];
  }
  const Matrix sum = norm.MatrixOf(Poison(shape.size()));
  CHECK(norm.Grad(x, dy, &residual, sum) == grad_weight);
  CHECK(OutsideBound(type, sum.values(), with_residual) == "");

  const Matrix of_cpu = norm.MatrixOf({});
  std::vector<float> weight_of_cpu(shape.width, 1.0F);
  REQUIRE(test.backend()
              .RmsNormGrad(x.view(), norm.weight, norm.rms, dy.view(), residual.view(), of_cpu.view(), weight_of_cpu)
              .ok());
  CHECK(OutsideBound(type, sum.values(), of_cpu.values(), with_residual) == "");
  CHECK(OutsideBound(DType::kFp32, grad_weight, weight_of_cpu, norm.grad_weight) == "");

  CheckSameInAllOrders([&] {
    const Matrix again = norm.MatrixOf(Poison(shape.size()));
    const std::vector<float> weight_again = norm.Grad(x, dy, &residual, again);
    return Results().Add(again).Add(weight_again);
  });

  const Matrix moved = norm.MatrixOf(norm.residual, 1);
  CHECK(norm.Grad(norm.MatrixOf(norm.x, 1), norm.MatrixOf(norm.grad_y, 1), &moved, moved) == grad_weight);
  CHECK(moved.values() == sum.values());
  const Matrix over_x = norm.MatrixOf(norm.x);
  norm.Grad(over_x, dy, &residual, over_x);
  const Matrix over_dy = norm.MatrixOf(norm.grad_y);
  norm.Grad(x, over_dy, &residual, over_dy);
  const Matrix over_residual = norm.MatrixOf(norm.residual);
  norm.Grad(x, dy, &over_residual, over_residual);
  for (const Matrix* in_place : {&over_x, &over_dy, &over_residual}) {
    CHECK(in_place->values() == sum.values());
  }
}

}  // namespace
}  // namespace geopipe
