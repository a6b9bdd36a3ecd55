#include "runtime/model/adamw.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace geopipe {

double LearningRate(const TrainingSpec& training, int64_t iteration) {
  if (iteration < training.warmup_iterations) {
    return training.learning_rate * static_cast<double>(iteration + 1) /
           static_cast<double>(training.warmup_iterations);
  }
  if (!training.min_learning_rate.has_value()) {
    return training.learning_rate;
  }
  const double low = *training.min_learning_rate;
  const int64_t length = training.iterations - training.warmup_iterations;
  const double progress = static_cast<double>(iteration - training.warmup_iterations) / static_cast<double>(length);
  return low + 0.5 * (training.learning_rate - low) * (1 + std::cos(std::numbers::pi * progress));
}

double ClipScale(double grad_clip, double grad_norm) { return std::min(1.0, grad_clip / (grad_norm + 1e-6)); }

AdamWStep MakeAdamWStep(const TrainingSpec& training, int64_t iteration, std::optional<double> grad_norm, bool decays) {
  const bool clips = training.grad_clip.has_value() && grad_norm.has_value();
  return {
      .learning_rate = LearningRate(training, iteration),
      .beta1 = training.beta1,
      .beta2 = training.beta2,
      .eps = training.eps,
      .weight_decay = decays ? training.weight_decay : 0.0,
      .grad_scale = clips ? ClipScale(*training.grad_clip, *grad_norm) : 1.0,
      .step = iteration + 1,
  };
}

}  // namespace geopipe
