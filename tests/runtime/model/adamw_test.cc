#include "runtime/model/adamw.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

TEST_CASE("the learning rate warms up, then follows the cosine to its minimum") {
  TrainingSpec training{.iterations = 12, .learning_rate = 1.0, .warmup_iterations = 4, .min_learning_rate = 0.2};
  CHECK(LearningRate(training, 0) == 0.25);
  CHECK(LearningRate(training, 3) == 1.0);
  CHECK(LearningRate(training, 4) == 1.0);
  CHECK(LearningRate(training, 6) == Approx(0.2 + 0.4 * (1 + std::sqrt(0.5))));
  CHECK(LearningRate(training, 8) == Approx(0.6));
  CHECK(LearningRate(training, 11) == Approx(0.2 + 0.4 * (1 - 0.9238795325112867)));
  training.min_learning_rate.reset();
  CHECK(LearningRate(training, 0) == 0.25);
  CHECK(LearningRate(training, 9) == 1.0);
  training.warmup_iterations = 0;
  CHECK(LearningRate(training, 0) == 1.0);
}

TEST_CASE("clipping scales by clip / (norm + 1e-6), never up") {
  CHECK(ClipScale(1.0, 0.5) == 1.0);
  CHECK(ClipScale(1.0, 4.0) == 1.0 / 4.000001);
  CHECK(ClipScale(0.5, 0.5) == 0.5 / 0.500001);
}

TEST_CASE("an update has the iteration's rate and step, the clip's scale, and decays weights alone") {
  TrainingSpec training;
  training.iterations = 10;
  training.learning_rate = 0.5;
  training.weight_decay = 0.1;
  training.grad_clip = 2.0;
  const AdamWStep step = MakeAdamWStep(training, 3, 4.0, /*decays=*/true);
  CHECK(step.learning_rate == 0.5);
  CHECK(step.step == 4);
  CHECK(step.weight_decay == 0.1);
  CHECK(step.grad_scale == ClipScale(2.0, 4.0));
  CHECK(MakeAdamWStep(training, 3, std::nullopt, /*decays=*/false).weight_decay == 0);
  CHECK(MakeAdamWStep(training, 3, std::nullopt, /*decays=*/false).grad_scale == 1);
}

}  // namespace
}  // namespace geopipe
