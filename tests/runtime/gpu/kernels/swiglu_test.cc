#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

MatrixShape AnyGate() {
  return GENERATE(MatrixShape{1, 1}, MatrixShape{3, 100, 100}, MatrixShape{5, 1024}, MatrixShape{2, 1500, 4},
                  MatrixShape{7, 13, 3, 1}, MatrixShape{2, 2056, 8, 8});
}

TEST_CASE("SwiGLU on a GPU is within its bound of fp64, and of the processor") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const MatrixShape shape = AnyGate();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.columns, shape.apart, shape.shift);
  std::vector<float> g = test.Normal(type, shape.size(), 3);
  g[0] = Held(type, {-200})[0];  // where exp(-gate) is infinite
  const std::vector<float> u = test.Normal(type, shape.size());
  std::vector<Expected> expected(shape.size());
  for (int64_t i = 0; i < shape.size(); ++i) {
    expected[i] = SwiGluOf(g[i], u[i]);
  }
  const auto matrix = [&](const std::vector<float>& values) {
    return Matrix(type, shape.rows, shape.columns, values, shape.apart, shape.shift);
  };
  const auto run = [&](const Matrix& gate, const Matrix& up, const Matrix& out) {
    const GpSwiGlu args = {.dtype = GpTypeOf(type),
                           .rows = shape.rows,
                           .columns = shape.columns,
                           .gate = gate.view().data,
                           .gate_stride = gate.view().stride,
                           .up = up.view().data,
                           .up_stride = up.view().stride,
                           .out = out.view().data,
                           .out_stride = out.view().stride};
    REQUIRE(gpu::SwiGlu(&args, nullptr) == 0);
  };
  const Matrix gate = matrix(g);
  const Matrix up = matrix(u);
  const Matrix out = matrix(Poison(shape.size()));
  run(gate, up, out);
  CHECK(OutsideBound(type, out.values(), expected) == "");
  CHECK(out.IntactBetweenRows());
  const Matrix of_cpu = matrix({});
  REQUIRE(test.backend().SwiGlu(gate.view(), up.view(), of_cpu.view()).ok());
  CHECK(OutsideBound(type, out.values(), of_cpu.values(), expected) == "");
  CheckSameInAllOrders([&] {
    const Matrix again = matrix(Poison(shape.size()));
    run(gate, up, again);
    return Results().Add(again);
  });
  const Matrix over_gate = matrix(g);
  run(over_gate, up, over_gate);
  const Matrix over_up = matrix(u);
  run(gate, over_up, over_up);
  CHECK((over_gate.values() == out.values() && over_up.values() == out.values()));
}

TEST_CASE("SwiGLU's gradients on a GPU are within their bound of fp64, and of the processor") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const MatrixShape shape = AnyGate();
  const auto type = GENERATE(DType::kFp32, DType::kBf16);
  CAPTURE(shape.rows, shape.columns, shape.apart, shape.shift);
  const std::vector<float> g = test.Normal(type, shape.size(), 3);
  const std::vector<float> u = test.Normal(type, shape.size());
  const std::vector<float> d = test.Normal(type, shape.size());
  std::vector<Expected> expected_gate(shape.size());
  std::vector<Expected> expected_up(shape.size());
  for (int64_t i = 0; i < shape.size(); ++i) {
    const SwiGluGrads grads = SwiGluGradsOf(g[i], u[i], d[i]);
    expected_gate[i] = grads.gate;
    expected_up[i] = grads.up;
  }
  const auto matrix = [&](const std::vector<float>& values) {
    return Matrix(type, shape.rows, shape.columns, values, shape.apart, shape.shift);
  };
  const Matrix grad_out = matrix(d);
  const auto run = [&](const Matrix& gate, const Matrix& up, const Matrix& grad_gate, const Matrix& grad_up) {
    const GpSwiGluGrad args = {.dtype = GpTypeOf(type),
                               .rows = shape.rows,
                               .columns = shape.columns,
                               .gate = gate.view().data,
                               .gate_stride = gate.view().stride,
                               .up = up.view().data,
                               .up_stride = up.view().stride,
                               .grad_out = grad_out.view().data,
                               .grad_out_stride = grad_out.view().stride,
                               .grad_gate = grad_gate.view().data,
                               .grad_gate_stride = grad_gate.view().stride,
                               .grad_up = grad_up.view().data,
                               .grad_up_stride = grad_up.view().stride};
    REQUIRE(gpu::SwiGluGrad(&args, nullptr) == 0);
  };
  const Matrix gate = matrix(g);
  const Matrix up = matrix(u);
  const Matrix grad_gate = matrix(Poison(shape.size()));
  const Matrix grad_up = matrix(Poison(shape.size()));
  run(gate, up, grad_gate, grad_up);
  CHECK(OutsideBound(type, grad_gate.values(), expected_gate) == "");
  CHECK(OutsideBound(type, grad_up.values(), expected_up) == "");
  CHECK((grad_gate.IntactBetweenRows() && grad_up.IntactBetweenRows()));
  const Matrix gate_of_cpu = matrix({});
  const Matrix up_of_cpu = matrix({});
  REQUIRE(
      test.backend().SwiGluGrad(gate.view(), up.view(), grad_out.view(), gate_of_cpu.view(), up_of_cpu.view()).ok());
  CHECK(OutsideBound(type, grad_gate.values(), gate_of_cpu.values(), expected_gate) == "");
  CHECK(OutsideBound(type, grad_up.values(), up_of_cpu.values(), expected_up) == "");
  CheckSameInAllOrders([&] {
    const Matrix over_gate = matrix(g);
    const Matrix over_up = matrix(u);
    run(over_gate, over_up, over_gate, over_up);
    return Results().Add(over_gate).Add(over_up);
  });
  run(gate, up, gate, up);
  CHECK((gate.values() == grad_gate.values() && up.values() == grad_up.values()));
}

}  // namespace
}  // namespace geopipe
