#include "tests/runtime/gpu/kernels/gpu_kernel_test.h"

namespace geopipe {
namespace {

GpAdamW CoefficientsOf(const AdamWStep& step) {
  const auto exponent = static_cast<double>(step.step);
  GpAdamW args = {};
  args.grad_scale = static_cast<float>(step.grad_scale);
  args.decay = static_cast<float>(1 - step.learning_rate * step.weight_decay);
  args.beta1 = static_cast<float>(step.beta1);
  args.one_minus_beta1 = static_cast<float>(1 - step.beta1);
  args.beta2 = static_cast<float>(step.beta2);
  args.one_minus_beta2 = static_cast<float>(1 - step.beta2);
  args.sqrt_bias_correction2 = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, exponent)));
  args.eps = static_cast<float>(step.eps);
  args.step_size = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, exponent)));
  return args;
}

TEST_CASE("AdamW on a GPU has the processor's bits, with a bf16 weight and without") {
  KernelTest test;
  INFO("GEOPIPE_TEST_SEED=" << test.seed());
  const int64_t size = GENERATE(1, 1003, 4096);
  const bool has_weight = GENERATE(false, true);
  const int64_t shift = GENERATE(0, 1);
  CAPTURE(size, has_weight, shift);
  const std::vector<float> gradient = test.Normal(size);
  const std::vector<float> p = test.Normal(size);
  const std::vector<float> m = test.Normal(size, 0.1F);
  std::vector<float> v = test.Normal(size, 0.1F);
  std::ranges::transform(v, v.begin(), [](float value) { return value * value; });
  const AdamWStep step = {.learning_rate = 3e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .grad_scale = 0.7,
                          .step = 3};
  const auto run = [&] {
    const auto vector = [&](const std::vector<float>& values) {
      return Matrix(DType::kFp32, 1, size, values, 1, shift);
    };
    const Matrix of_gradient = vector(gradient);
    const Matrix parameter = vector(p);
    const Matrix first = vector(m);
    const Matrix second = vector(v);
    const Matrix weight(DType::kBf16, 1, size, Poison(size), 1, shift);
    const auto data = [](const Matrix& matrix) { return reinterpret_cast<float*>(matrix.view().data); };
    GpAdamW args = CoefficientsOf(step);
    args.size = size;
    args.gradient = data(of_gradient);
    args.parameter = data(parameter);
    args.first_moment = data(first);
    args.second_moment = data(second);
    args.compute_weight = has_weight ? weight.view().data : nullptr;
    REQUIRE(gpu::AdamW(&args, nullptr) == 0);
    CHECK((parameter.IntactBetweenRows() && first.IntactBetweenRows() && second.IntactBetweenRows()));
    CHECK(weight.IntactBetweenRows());
    return std::vector<std::vector<float>>{parameter.values(), first.values(), second.values(),
                                           has_weight ? weight.values() : Held(DType::kBf16, parameter.values())};
  };
  const std::vector<std::vector<float>> results = run();

  std::vector<float> parameter = p;
  std::vector<float> first = m;
  std::vector<float> second = v;
  AdamWStep on_cpu = step;
  on_cpu.parameter = parameter;
  on_cpu.gradient = gradient;
  on_cpu.first_moment = first;
  on_cpu.second_moment = second;
  REQUIRE(test.backend().AdamW(on_cpu).ok());
  CHECK(results == std::vector<std::vector<float>>{parameter, first, second, Held(DType::kBf16, parameter)});

  std::vector<Expected> expected(size);
  for (int64_t i = 0; i < size; ++i) {
    expected[i] = AdamWOf(step, p[i], gradient[i], m[i], v[i]);
  }
  CHECK(OutsideBound(DType::kFp32, results[0], expected) == "");
  CheckSameInAllOrders([&] {
    const std::vector<std::vector<float>> again = run();
    return Results().Add(again[0]).Add(again[1]).Add(again[2]).Add(again[3]);
  });
}

}  // namespace
}  // namespace geopipe
