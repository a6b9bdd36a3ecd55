#include "tests/runtime/backend/kernel_test.h"

namespace geopipe {
namespace {

struct Row {
  double parameter;
  double first_moment;
  double second_moment;
};

TEST_CASE("AdamW agrees with torch.optim.AdamW step by step") {
  // torch 1.13 in fp64: parameter 1, gradients 0.5, -0.25, 2, 0; lr 0.1, betas (0.9, 0.95), eps 1e-8, decay 0.1.
  const std::vector<double> gradients{0.5, -0.25, 2.0, 0.0};
  const std::vector<Row> expected{
      {0.890000002, 0.05, 0.0125},
      {0.854263057856, 0.02, 0.015},
      {0.780087071096, 0.218, 0.21425},
      {0.717822236548, 0.1962, 0.2035375},
  };
  KernelTest test;
  std::vector<float> parameter{1.0F};
  std::vector<float> first{0.0F};
  std::vector<float> second{0.0F};
  for (size_t i = 0; i < gradients.size(); ++i) {
    const std::vector<float> gradient{static_cast<float>(2 * gradients[i])};
    REQUIRE(test.backend()
                .AdamW({.parameter = parameter,
                        .gradient = gradient,
                        .first_moment = first,
                        .second_moment = second,
                        .learning_rate = 0.1,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .grad_scale = 0.5,
                        .step = static_cast<int64_t>(i) + 1})
                .ok());
    CHECK(parameter[0] == Approx(expected[i].parameter).epsilon(1e-6));
    CHECK(first[0] == Approx(expected[i].first_moment).epsilon(1e-6));
    CHECK(second[0] == Approx(expected[i].second_moment).epsilon(1e-6));
  }
}

TEST_CASE("AdamW of a zero gradient without decay changes nothing") {
  KernelTest test;
  std::vector<float> parameter = test.Normal(100);
  const std::vector<float> before = parameter;
  const std::vector<float> gradient(100);
  std::vector<float> first(100);
  std::vector<float> second(100);
  REQUIRE(test.backend()
              .AdamW({.parameter = parameter,
                      .gradient = gradient,
                      .first_moment = first,
                      .second_moment = second,
                      .learning_rate = 0.1,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8})
              .ok());
  CHECK(parameter == before);
}

TEST_CASE("AdamW also writes the rounded parameter where one is asked for, and the same update either way") {
  KernelTest test;
  const int64_t count = GENERATE(1, 7, 4096, 10'001);
  const std::vector<float> before = test.Normal(count);
  const std::vector<float> gradient = test.Normal(count);
  const auto update = [&](std::vector<float>& parameter, std::vector<BFloat16>& rounded) {
    std::vector<float> first(count);
    std::vector<float> second(count);
    REQUIRE(test.backend()
                .AdamW({.parameter = parameter,
                        .gradient = gradient,
                        .first_moment = first,
                        .second_moment = second,
                        .learning_rate = 0.1,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .compute_weight = rounded})
                .ok());
  };
  std::vector<float> alone = before;
  std::vector<float> parameter = before;
  std::vector<BFloat16> none;
  std::vector<BFloat16> rounded(count);
  update(alone, none);
  update(parameter, rounded);
  CHECK(parameter == alone);
  std::vector<BFloat16> expected(count);
  std::ranges::transform(parameter, expected.begin(), NearestBf16);
  CHECK(rounded == expected);
}

}  // namespace
}  // namespace geopipe
