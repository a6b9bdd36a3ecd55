#include "runtime/backend/adamw_constants.h"

#include <cmath>

#include "optimizer/base/check.h"
#include "runtime/backend/backend.h"

namespace geopipe {

AdamWConstants ConstantsOf(const AdamWStep& step) {
  GP_CHECK(step.gradient.size == step.parameter.size && step.first_moment.size == step.parameter.size &&
           step.second_moment.size == step.parameter.size && step.step >= 1);
  GP_CHECK(step.compute_weight.size == 0 || step.compute_weight.size == step.parameter.size);
  const auto exponent = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, exponent);
  const double correction2 = 1 - std::pow(step.beta2, exponent);
  return {
      .grad_scale = static_cast<float>(step.grad_scale),
      .decay = static_cast<float>(1 - step.learning_rate * step.weight_decay),
      .beta1 = static_cast<float>(step.beta1),
      .one_minus_beta1 = static_cast<float>(1 - step.beta1),
      .beta2 = static_cast<float>(step.beta2),
      .one_minus_beta2 = static_cast<float>(1 - step.beta2),
      .sqrt_bias_correction2 = static_cast<float>(std::sqrt(correction2)),
      .eps = static_cast<float>(step.eps),
      .step_size = static_cast<float>(step.learning_rate / correction1),
  };
}

}  // namespace geopipe
